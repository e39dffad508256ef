"""Other tools read the lake, and what we hand out for them names only what exists."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml

from fairlead.contrib.prometheus import PrometheusObserver
from fairlead.pipeline.dictionary import as_dbt_sources
from fairlead.pipeline.models import COST, LATENCY_HIST, SERVICE, TABLES
from fairlead.pipeline.warehouse.location import Location, flat_name
from tests.pipeline.frames import T0
from tests.pipeline.tables_by_hand import put, row
from tests.pipeline.warehouses import lake_in

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "pipeline"
PAGE = (ROOT / "docs" / "how-to" / "pipeline-tools.md").read_text()
DAY = T0.replace(hour=0, minute=0, second=0, microsecond=0)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Folder of a lake with bills, waits and runs of two tenants."""
    made = lake_in(tmp_path / "lake")
    keys = ("acme/1", "acme/2", "beta")
    put(made, COST, [row(COST, day=DAY, fairness_key=k, amount=Decimal("1.5")) for k in keys])
    hours = [T0 + timedelta(hours=n) for n in range(3)]
    put(
        made, SERVICE, [row(SERVICE, window_start=at, fairness_key=k) for at in hours for k in keys]
    )
    waits = [
        row(LATENCY_HIST, hour=T0, fairness_key="*", measure="pickup", bucket=n, max_us=10**7)
        for n in (600, 700, 800)
    ]
    put(made, LATENCY_HIST, waits)
    return tmp_path / "lake"


def blocks(kind: str, lake: Path) -> list[str]:
    """Return the blocks of a kind on the page, about this lake."""
    found = re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    return [text.replace("/var/lib/fairlead/lake", str(lake)) for text in found]


def test_pandas_and_polars_read_the_tables_as_the_page_says(lake: Path, capsys: Any) -> None:
    names: dict[str, Any] = {}
    for text in blocks("python", lake):
        exec(compile(text, "pipeline-tools.md", "exec"), names)  # noqa: S102 - our own page
    assert names["frame"].groupby("fairness_key")["amount"].sum()["acme/1"] == Decimal("1.5")
    rows = names["lazy"].select("fairness_key", "amount").collect().rows()
    assert sorted(rows) == [(key, Decimal("1.5")) for key in ("acme/1", "acme/2", "beta")]
    assert "beta" in capsys.readouterr().out


def test_the_settings_of_spark_are_those_of_our_own_sessions(lake: Path) -> None:
    [text] = blocks("properties", lake)
    settings = dict(line.split(" ", 1) for line in text.splitlines())
    assert settings == Location.of(lake).spark()


def test_the_page_names_columns_that_exist() -> None:
    assert {"fairness_key", "amount", "day"} <= set(COST.column_names)
    assert "fairlead.fairlead.gold_cost" in PAGE and flat_name(COST) == "gold_cost"


def test_the_sources_of_dbt_are_the_dictionary() -> None:
    [source] = yaml.safe_load(as_dbt_sources())["sources"]
    assert (source["name"], source["schema"]) == ("fairlead", "fairlead")
    found = {table["name"]: table for table in source["tables"]}
    assert found.keys() == {flat_name(table) for table in TABLES}
    for table in TABLES:
        made = found[flat_name(table)]
        columns = [(c["name"], c["data_type"], c["description"]) for c in made["columns"]]
        assert columns == [(c.name, c.type, c.doc) for c in table.columns]
        tested = {c["name"] for c in made["columns"] if "data_tests" in c}
        assert tested == set(table.key) and made["loaded_at_field"] == table.instant


def test_the_dashboard_names_metrics_and_labels_that_exist() -> None:
    metrics: dict[str, set[str]] = {}
    for family in PrometheusObserver().registry.collect():
        for suffix in ("", "_total", "_bucket", "_sum", "_count"):
            metrics[family.name + suffix] = {"le", *_labels(family.name)}
    seen = set()
    for target in _targets("prometheus"):
        named = re.findall(r"fairlead_\w+", target["expr"])
        assert named and set(named) <= metrics.keys(), target["expr"]
        seen |= set(named)
        for by in re.findall(r"by \(([^)]*)\)", target["expr"]):
            assert set(by.split(", ")) <= metrics[named[0]], target["expr"]
        shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
        assert shown <= metrics[named[0]]
    assert len(seen) >= 9


def _labels(name: str) -> set[str]:
    found = PrometheusObserver().registry._names_to_collectors[name]
    return set(found._labelnames)  # type: ignore[attr-defined]


def _targets(source: str) -> list[dict[str, Any]]:
    panels = json.loads((EXAMPLES / "grafana.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    return [
        target
        for panel in panels
        if panel["datasource"]["uid"] == f"${{{source}}}"
        for target in panel["targets"]
    ]


def test_the_dashboard_asks_postgresql_for_columns_that_exist(migrated_postgres_url: str) -> None:
    statements = [target["rawSql"] for target in _targets("postgres")]
    assert len(statements) >= 3
    with psycopg.connect(migrated_postgres_url) as connection:
        for text in statements:
            cursor = connection.execute(re.sub(r"\$__(from|to)\b", "0", text))  # type: ignore[arg-type]
            assert cursor.description is not None
    tables = set(re.findall(r"FROM (\w+)", " ".join(statements)))
    assert all(f"`{table}`" in PAGE for table in tables)


def test_the_notebook_runs_and_draws(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="pip install -e .[dev]")
    import nbformat

    notebook = nbformat.read(EXAMPLES / "history.ipynb", as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells)  # as it is committed
    monkeypatch.setenv("FAIRLEAD_LAKE", str(lake))
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    nbclient.NotebookClient(notebook, kernel_name="python3").execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    kinds = [kind for output in outputs for kind in output.get("data", ())]
    assert kinds.count("image/png") == 2 and "acme" in str(outputs)


@pytest.mark.parametrize("name", ["airflow_dags.py", "dagster_assets.py"])
def test_an_example_of_a_scheduler_runs_commands_that_exist(name: str) -> None:
    from fairlead.pipeline.commands import _MODULES

    text = (EXAMPLES / name).read_text()
    code = compile(text, name, "exec")
    named = set(re.findall(r"fairlead pipeline (\w+)|fairlead\(\"(\w+)\"", text))
    assert {one or two for one, two in named} <= _MODULES.keys() and len(named) >= 4
    library = name.partition("_")[0]
    if importlib.util.find_spec(library) is None:
        return  # neither is an extra of ours: with the library, the file is loaded too
    scope: dict[str, Any] = {"__name__": "example"}
    os.environ.setdefault("AIRFLOW_HOME", str(Path(sys.prefix) / "airflow"))
    exec(code, scope)  # noqa: S102 - our own example
