"""One measured process of bench/pipeline.py that runs DuckDB; prints a line of JSON. Needs no other
module.

python bench/pipeline_duckdb.py OUT --threads 2 < files    pipeline.sql on these files, twice
"""

import argparse
import json
import pathlib
import sys
import time

import duckdb
from process_tree import Peak, cpu_seconds

STATEMENTS = pathlib.Path(__file__).with_name("pipeline.sql")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--threads", type=int, default=2)
    wanted = parser.parse_args()
    wanted.out.mkdir(parents=True, exist_ok=True)
    files = ", ".join(f"'{line.strip()}'" for line in sys.stdin)
    script = STATEMENTS.read_text().replace("$files", f"[{files}]").replace("$out", str(wanted.out))
    with Peak() as peak:
        began = time.perf_counter()
        connection = duckdb.connect()
        connection.execute(f"SET threads = {wanted.threads}; SET TimeZone = 'UTC'")
        found = {"start_s": time.perf_counter() - began}
        for pass_ in ("cold", "warm"):
            cpu, began = cpu_seconds(), time.perf_counter()
            connection.execute(script)
            found[pass_] = {"seconds": time.perf_counter() - began, "cpu_s": cpu_seconds() - cpu}
    print(json.dumps({**found, "peak_mb": peak.mb, "duckdb": duckdb.__version__}))


if __name__ == "__main__":
    main()
