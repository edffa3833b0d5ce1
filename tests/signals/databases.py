"""Small signal databases that several modules decode with."""

from __future__ import annotations

from pathlib import Path

import cantools

from pcaplake.signals import Databases

DBC = """
VERSION ""
BU_: A
BO_ 256 Plain: 8 A
 SG_ Little : 3|12@1+ (0.5,-10) [0|100] "km/h" A
 SG_ Big : 23|16@0- (1,0) [0|0] "" A
 SG_ Odd : 37|13@0+ (2,1) [0|0] "V" A
 SG_ Gear : 56|3@1+ (1,0) [0|5] "" A
BO_ 2566844672 Floats: 64 A
 SG_ Single : 0|32@1- (0.25,1) [0|0] "" A
 SG_ Double : 39|64@0- (1,0) [0|0] "" A
 SG_ Huge : 131|64@1+ (1,0) [0|0] "" A
 SG_ HugeSigned : 200|64@1- (3,0) [0|0] "" A
 SG_ HugeBig : 282|64@0+ (1,7) [0|0] "" A
 SG_ Wide : 365|63@1- (1,0) [0|0] "" A
BO_ 512 Muxed: 8 A
 SG_ Mode M : 0|4@1+ (1,0) [0|0] "" A
 SG_ Sub m1M : 4|4@1+ (1,0) [0|0] "" A
 SG_ Left m0 : 8|8@1- (1,0) [0|0] "" A
 SG_ Right m2 : 8|16@1+ (0.1,0) [0|0] "" A
 SG_ Deep m3 : 16|8@1+ (1,0) [0|0] "" A
SG_MUL_VAL_ 512 Left Mode 0-1,7-7;
SG_MUL_VAL_ 512 Sub Mode 1-1;
SG_MUL_VAL_ 512 Right Mode 2-3;
SG_MUL_VAL_ 512 Deep Sub 3-5;
SIG_VALTYPE_ 2566844672 Single : 1;
SIG_VALTYPE_ 2566844672 Double : 2;
VAL_ 256 Gear 0 "P" 1 "R" 2 "N" 3 "D" 7 "unknown" ;
VAL_ 256 Big -5 "low" 30000 "high" ;
"""


DATABASE = cantools.database.load_string(DBC, "dbc")


A_DBC = """
VERSION ""
BU_: A
BO_ 256 Speed: 8 A
 SG_ Wheel : 0|16@1+ (0.5,0) [0|0] "km/h" A
 SG_ Gear : 16|3@1+ (1,0) [0|5] "" A
 SG_ Late : 56|8@1+ (1,0) [0|0] "" A
BO_ 2147483904 Other: 2 A
 SG_ x : 0|8@1+ (1,0) [0|0] "" A
VAL_ 256 Gear 0 "P" 3 "D" ;
"""


B_DBC = A_DBC.replace("BO_ 256 Speed", "BO_ 256 Turn").replace('(0.5,0) [0|0] "km/h"', '(1,-100) [0|0] "deg"')


LDF = """
LIN_description_file;
LIN_protocol_version = "2.1";
LIN_language_version = "2.1";
LIN_speed = 19.2 kbps;
Nodes { Master: CEM, 5 ms, 0.1 ms ; Slaves: LSM ; }
Signals {
  Level: 10, 0, CEM, LSM ;
  Mode: 2, 0, CEM, LSM ;
  Serial: 16, {0, 0}, LSM, CEM ;
}
Frames {
  Cmd: 1, CEM, 2 { Level, 0 ; Mode, 10 ; }
  Stat: 2, LSM, 2 { Serial, 0 ; }
}
Node_attributes {
  LSM { LIN_protocol = "2.1" ; configured_NAD = 0x20 ; product_id = 0x4A4F, 0x4841 ; response_error = Mode ;
    P2_min = 150 ms ; ST_min = 50 ms ; configurable_frames { Cmd ; Stat ; } }
}
Schedule_tables { Normal { Cmd delay 15 ms ; Stat delay 15 ms ; } }
Signal_encoding_types {
  LevelEnc { physical_value, 0, 1000, 0.5, -10, "%" ; logical_value, 1023, "off" ; }
  ModeEnc { logical_value, 0, "none" ; logical_value, 1, "auto" ; }
  SerialEnc { bcd_value ; }
}
Signal_representation { LevelEnc: Level ; ModeEnc: Mode ; SerialEnc: Serial ; }
"""


def databases(folder: Path, said: str) -> Databases:
    for name, text in (("a.dbc", A_DBC), ("b.dbc", B_DBC), ("doors.ldf", LDF)):
        (folder / name).write_text(text)
    (folder / "buses.yaml").write_text(said)
    return Databases.from_file(folder / "buses.yaml")


TWO_BUSES = """
databases: {a: a.dbc, b: b.dbc, doors: doors.ldf}
buses: {1: a, "2": b, "*": doors}
"""


UNIT, LABEL = "°C", "über"


LETTERS_DBC = f"""
VERSION ""
BU_: A
BO_ 256 M: 8 A
 SG_ S : 0|8@1+ (1,0) [0|0] "{UNIT}" A
VAL_ 256 S 1 "{LABEL}" ;
"""


LETTERS_SYM = f"""FormatVersion=6.0 // do not edit
Title="t"
{{ENUMS}}
Enum=E(1="{LABEL}")
{{SIGNALS}}
Sig=S unsigned 8 /u:{UNIT} /e:E
{{SENDRECEIVE}}
[M]
ID=100h
Len=8
Sig=S 0
"""


LETTERS_KCD = f"""<?xml version="1.0" encoding="%s"?>
<NetworkDefinition xmlns="http://kayak.2codeornot2code.org/1.0">
  <Document name="d"/>
  <Bus name="b"><Message id="0x100" length="8" name="M">
    <Signal name="S" offset="0" length="8"><Value unit="{UNIT}"/>
      <LabelSet><Label name="{LABEL}" value="1"/></LabelSet></Signal>
  </Message></Bus>
</NetworkDefinition>
"""


LETTERS_LDF = LDF.replace('"%"', f'"{UNIT}"').replace('"off"', f'"{LABEL}"')
