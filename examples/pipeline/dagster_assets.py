"""The pipeline as assets of Dagster: `dagster dev -f dagster_assets.py`.

FAIRLEAD_URL and FAIRLEAD_LAKE (and FAIRLEAD_CATALOG on an object store) name the store and the
lake. Each step can be run again after a crash, so a retry needs no cleaning.
"""

import subprocess
import sys

from dagster import (
    AssetSelection,
    Definitions,
    RetryPolicy,
    ScheduleDefinition,
    asset,
    define_asset_job,
)

RETRY = RetryPolicy(max_retries=3, delay=60)


def fairlead(*arguments: str) -> None:
    """Run a command of the pipeline."""
    subprocess.run([sys.executable, "-m", "fairlead", "pipeline", *arguments], check=True)


@asset(retry_policy=RETRY)
def fairlead_bronze() -> None:
    """Finished attempts in the lake, each once."""
    fairlead("ingest")


@asset(deps=[fairlead_bronze], retry_policy=RETRY)
def fairlead_tables() -> None:
    """Tables of silver and gold, published together when all checks hold."""
    fairlead("build")


@asset(deps=[fairlead_tables], retry_policy=RETRY)
def fairlead_report() -> None:
    """The page about the last seven days."""
    fairlead("report", "--out", "report.html")


@asset(deps=[fairlead_tables], retry_policy=RETRY)
def fairlead_maintenance() -> None:
    """Small files merged, replaced ones removed, lake and store compared."""
    fairlead("maintain")


hourly = define_asset_job(
    "fairlead_hourly", AssetSelection.assets(fairlead_bronze, fairlead_tables, fairlead_report)
)
nightly = define_asset_job("fairlead_nightly", AssetSelection.assets(fairlead_maintenance))

defs = Definitions(
    assets=[fairlead_bronze, fairlead_tables, fairlead_report, fairlead_maintenance],
    schedules=[
        ScheduleDefinition(job=hourly, cron_schedule="5 * * * *"),
        ScheduleDefinition(job=nightly, cron_schedule="30 3 * * *"),
    ],
)
