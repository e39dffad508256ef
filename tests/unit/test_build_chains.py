"""Tables of a build that do not need each other are built at the same time."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

pytest.importorskip("pyspark")

from fairlead.pipeline.errors import BrokenLake
from fairlead.pipeline.jobs.build_plan import BuildPlan
from fairlead.pipeline.jobs.runner import Runner
from fairlead.pipeline.models import TASKS
from fairlead.pipeline.schema import Table
from fairlead.pipeline.settings import PipelineSettings

EVERYTHING = BuildPlan(True, [], frozenset(), frozenset(), frozenset(), 0, 0, "")


class Failing(Runner):
    """Runs models that end at once, except that silver.tasks fails while others run."""

    def __init__(self) -> None:
        super().__init__(cast(Any, None), cast(Any, None), EVERYTHING, PipelineSettings())
        self.made: list[str] = []
        self.failed = threading.Event()

    def _make(self, table: Table) -> None:
        if table is TASKS:
            self.failed.set()
            raise BrokenLake("a file is damaged")
        self.failed.wait(60)
        self.made.append(table.name)


def test_the_first_error_ends_the_other_tables_of_a_build() -> None:
    runner = Failing()
    with pytest.raises(BrokenLake, match="a file is damaged"):
        runner.run()
    assert len(runner.made) < 6
    assert not {"silver.open_tasks", "silver.backlog", "gold.tenant_share"} & set(runner.made)
