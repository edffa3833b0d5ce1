"""Shows how to query a lake, and runs the DuckDB query:    python docs/examples/query.py LAKE"""

import sys
from importlib.metadata import files

import duckdb

DUCKDB = """\
SELECT source, bus, count(*) AS frames, count(DISTINCT can_id) AS ids, min(ts) AS first, max(ts) AS last
FROM delta_scan('{lake}/can_frames')
WHERE NOT error
GROUP BY ALL ORDER BY frames DESC"""

POLARS = """\
import polars as pl
pl.scan_delta("{lake}/someip_messages").group_by("service_id", "method_id").len().collect()"""

SPARK = """\
spark.read.format("delta").load("{lake}/packets").groupBy("date", "protocol").count().show()"""


def main(lake: str) -> None:
    """Print the three queries, and the result of the first."""
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    # The package duckdb-extension-delta contains the extension. With internet access, use INSTALL delta; LOAD delta;
    extension = next(path for path in files("duckdb-extension-delta") or () if path.suffix == ".duckdb_extension")
    connection.load_extension(str(extension.locate()))
    query = DUCKDB.format(lake=lake)
    print(f"\nDuckDB (INSTALL delta; LOAD delta;):\n\n{query}\n")
    connection.sql(query).show()
    print(f"Polars:\n\n{POLARS.format(lake=lake)}\n\nSpark, with the Delta package:\n\n{SPARK.format(lake=lake)}")


if __name__ == "__main__":
    main(sys.argv[1])
