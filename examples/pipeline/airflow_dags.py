"""The pipeline as two DAGs of Airflow 3: put this file into the folder of DAGs.

FAIRLEAD_URL and FAIRLEAD_LAKE (and FAIRLEAD_CATALOG on an object store) name the store and the lake
in the environment of the workers. Each step can be run again after a crash.
"""

from datetime import UTC, datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

STEPS = {
    "retries": 3,
    "retry_delay": timedelta(minutes=1),
}

with DAG(
    "fairlead_hourly",
    schedule="5 * * * *",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args=STEPS,
) as hourly:
    ingest = BashOperator(task_id="ingest", bash_command="fairlead pipeline ingest")
    build = BashOperator(task_id="build", bash_command="fairlead pipeline build")
    report = BashOperator(
        task_id="report", bash_command="fairlead pipeline report --out /srv/www/fairlead.html"
    )
    ingest >> build >> report

with DAG(
    "fairlead_nightly",
    schedule="30 3 * * *",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args=STEPS,
) as nightly:
    BashOperator(task_id="maintain", bash_command="fairlead pipeline maintain")
