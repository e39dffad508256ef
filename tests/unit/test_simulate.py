"""`fairlead simulate`: waits and shares in fair order and first in, first out."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from fairlead.cli.main import app


def simulated(*arguments: str) -> dict[str, dict[str, dict[str, float]]]:
    """Return the results of the command by key."""
    result = CliRunner().invoke(app, ["simulate", "--json", *arguments])
    assert result.exit_code == 0, result.output
    return {each["key"]: each for each in json.loads(result.stdout)}


def test_a_flood_delays_small_keys_first_in_first_out_and_hardly_in_fair_order() -> None:
    found = simulated("acme=600", "bob=20", "--slots", "10")
    assert found["bob"]["fifo"] == {"p50": 60.0, "p99": 61.0, "most": 61.0, "share": 0.0}
    assert found["bob"]["fair"]["share"] == pytest.approx(0.5, abs=0.03)
    assert found["bob"]["fair"]["most"] == 3.0
    assert found["acme"]["fair"]["most"] == found["bob"]["fifo"]["most"] == 61.0


def test_shares_follow_weights_and_tasks_arrive_and_run_at_their_times() -> None:
    found = simulated("a=300,weight=3,run=0.5", "b=300,run=0.5", "--slots", "1")
    assert found["a"]["fair"]["share"] == pytest.approx(0.75, abs=0.01)
    late = simulated("a=100,run=0.5", "b=1,at=10", "--slots", "1")["b"]
    assert late["fair"]["most"] <= 0.5 and late["fifo"]["most"] == 40.0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["acme"], "use KEY=TASKS"),
        (["acme=many"], "use KEY=TASKS"),
        (["acme=0"], "tasks 0: use a whole number from 1"),
        (["acme=1,wait=3"], "use KEY=TASKS"),
        (["acme=1,run=long"], "use KEY=TASKS"),
        (["acme=1,weight=5000"], "weight 5000.0: use a number from 0.001 to 1000"),
        (["acme=1", "acme=2"], "name each key once"),
        (["acme=600000", "bob=600000"], "tasks of all keys 1200000"),
    ],
)
def test_the_error_about_wrong_use_is_one_line_with_cause_and_cure(
    arguments: list[str], text: str
) -> None:
    result = CliRunner().invoke(app, ["simulate", *arguments])
    assert result.exit_code == 2
    assert text in result.stderr and result.stderr.count("\n") == 1


def test_the_table_has_a_row_for_each_key() -> None:
    result = CliRunner().invoke(app, ["simulate", "acme=60", "bob=20,weight=5"])
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["key", "acme", "bob"]
