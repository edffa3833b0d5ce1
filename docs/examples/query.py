"""Shows how to query a day of a lake, and runs the DuckDB query:    python docs/examples/query.py LAKE [DAY]

DAY: by default the newest day of a capture. Each query names a day, so it opens only the files of that day.
"""

import sys
from importlib.metadata import files

import duckdb

DUCKDB = """\
SELECT vehicle_id, bus, count(*) AS frames, count(DISTINCT (can_id, extended)) AS ids, min(ts) AS first, max(ts) AS last
FROM delta_scan('{lake}/can_frames')
WHERE date = '{day}' AND NOT error
GROUP BY ALL ORDER BY frames DESC, vehicle_id LIMIT 8"""

POLARS = """\
from datetime import date
import polars as pl
messages = pl.scan_delta("{lake}/someip_messages").filter(pl.col("date") == date.fromisoformat("{day}"))
messages.group_by("vehicle_id", "service_id", "method_id").len().collect()"""

SPARK = """\
packets = spark.read.format("delta").load("{lake}/packets").where("date = '{day}'")
packets.groupBy("vehicle_id", "protocol").count().show()"""


def main(lake: str, day: str = "") -> None:
    """Print the three queries, and the result of the first."""
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    # The package duckdb-extension-delta contains the extension. With internet access, use INSTALL delta; LOAD delta;
    extension = next(path for path in files("duckdb-extension-delta") or () if path.suffix == ".duckdb_extension")
    connection.load_extension(str(extension.locate()))
    newest = connection.execute(f"SELECT max(date)::VARCHAR FROM delta_scan('{lake}/captures')").fetchone()
    names = {"lake": lake, "day": day or (newest[0] if newest else "")}
    query = DUCKDB.format(**names)
    print(f"\nDuckDB (INSTALL delta; LOAD delta;):\n\n{query}\n")
    connection.sql(query).show()
    print(f"Polars:\n\n{POLARS.format(**names)}\n\nSpark, with the Delta package:\n\n{SPARK.format(**names)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
