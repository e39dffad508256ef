"""The whole LCG trace pushed at once and run by two workers, fair compared with fifo, on SQLite and
PostgreSQL.

python bench/lcg.py [--trace ../shared/data/lcg-2005.swf.gz] [--only sqlite,postgres] [--plot
    docs/fair-lcg.svg]

Print a table in Markdown. Exit code 1 unless the median tenant's p99 position is at least 20 times
better under fair, and the heaviest tenant's last task is at most 1 % later.
"""

import argparse
import json
import pathlib
import subprocess
import sys
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

TRACE = ROOT.parent / "shared" / "data" / "lcg-2005.swf.gz"
ORDERS = ("fifo", "fair")
COLOURS = {"fifo": "#b3541e", "fair": "#1f6f8b"}
GOAL_TIMES = 20
GOAL_LATER = 0.01


def replay(trace: pathlib.Path, order: str, url: str | None) -> dict[str, Any]:
    """Return the results of `fairlead replay` for one run."""
    command = [
        sys.executable,
        "-m",
        "fairlead",
        "replay",
        str(trace),
        "--order",
        order,
        "--push-first",
        "--fresh",
        "--json",
    ]
    ran = subprocess.run(
        [*command, *(["--url", url] if url else [])], capture_output=True, text=True
    )
    if ran.returncode:
        raise SystemExit(f"fairlead replay failed ({ran.returncode}): {ran.stderr[-2000:]}")
    report: dict[str, Any] = json.loads(ran.stdout)
    return report


def rows(store: str, found: dict[str, dict[str, Any]]) -> list[str]:
    """Return the rows of the table."""
    fifo, fair = (found[order]["positions"] for order in ORDERS)
    lines = []
    for order in ORDERS:
        at, run = found[order]["positions"], found[order]
        lines.append(
            f"| {store} | {order} | {at['median_tenant_p99']:,.0f} | {at['heaviest_last']:,} |"
            f" {at['jain_index']:.3f} | {at['most_beyond_bound']:,} | {run['lost']} /"
            f" {run['ran_twice']} | {run['tasks_per_s']:,.0f} |"
        )
    times = fifo["median_tenant_p99"] / fair["median_tenant_p99"]
    later = fair["heaviest_last"] / fifo["heaviest_last"] - 1
    lines.append(
        f"| {store} | fair is | {times:.1f} times better | {100 * later:.3f} % later | | | | |"
    )
    return lines


def is_met(found: dict[str, dict[str, Any]]) -> bool:
    fifo, fair = (found[order]["positions"] for order in ORDERS)
    return bool(
        fifo["median_tenant_p99"] >= GOAL_TIMES * fair["median_tenant_p99"]
        and fair["heaviest_last"] <= fifo["heaviest_last"] * (1 + GOAL_LATER)
    )


def plot(found: dict[str, dict[str, dict[str, Any]]], path: pathlib.Path) -> None:
    """Plot, for each store and over tenants, the position by which 99 % of a tenant's tasks had
    been picked up."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5 * len(found), 4.2), layout="constrained")
    for axes, (store, runs) in zip(
        figure.subplots(1, len(found), squeeze=False)[0], found.items(), strict=True
    ):
        for order in ORDERS:
            tenants = runs[order]["positions"]["tenants"]
            axes.plot(
                [tenant["tasks"] for tenant in tenants],
                [tenant["p99"] for tenant in tenants],
                ".",
                color=COLOURS[order],
                label=order,
            )
        axes.set(xscale="log", yscale="log", title=store, xlabel="tasks of the tenant")
        axes.set(ylabel="99th percentile of its pick-up positions")
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, metadata={"Date": None})


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trace", type=pathlib.Path, default=TRACE)
    parser.add_argument("--only", default="sqlite,postgres")
    parser.add_argument("--plot", type=pathlib.Path)
    wanted = parser.parse_args()
    if not wanted.trace.is_file():
        parser.error(f"there is no {wanted.trace}; name a trace by --trace")
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for store in wanted.only.split(","):
        if store == "postgres":
            from services.postgres import PostgresServer

            with PostgresServer() as server:
                found[store] = {
                    order: replay(wanted.trace, order, server.create_database()) for order in ORDERS
                }
        else:
            found[store] = {order: replay(wanted.trace, order, None) for order in ORDERS}
    print(
        "| store | order | median tenant's p99 position | last of the heaviest | Jain's index |"
        " most beyond the bound | lost / twice | tasks/s |\n|---|---|--:|--:|--:|--:|--:|--:|"
    )
    for store, runs in found.items():
        print("\n".join(rows(store, runs)))
    if wanted.plot:
        plot(found, wanted.plot)
    return 0 if all(map(is_met, found.values())) else 1


if __name__ == "__main__":
    sys.exit(main())
