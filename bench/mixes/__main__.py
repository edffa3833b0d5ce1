"""Writes the captures of a mix: `python -m bench.mixes OUT --mix c --seconds 10`."""

import argparse
from pathlib import Path

from . import MIXES, write_captures

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("out", type=Path, help="folder; created if it does not exist")
parser.add_argument("--mix", choices=MIXES, default="c")
parser.add_argument("--seconds", type=float, default=10.0, help="of traffic")
parser.add_argument("--vehicles", type=int, default=1)
parser.add_argument("--seed", type=int, default=1, help="the same seed gives the same bytes")
options = parser.parse_args()
for path in write_captures(options.out, options.mix, options.seconds, options.vehicles, options.seed):
    print(path)
