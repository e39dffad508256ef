"""Tables of a build that do not need each other are built at the same time."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

pytest.importorskip("pyspark")

from fairlead.pipeline.build_plan import BuildPlan
from fairlead.pipeline.errors import BrokenLake
from fairlead.pipeline.jobs.layers import Build
from fairlead.pipeline.models import SERVICE, TASKS
from fairlead.pipeline.schema import Table
from fairlead.pipeline.settings import PipelineSettings

EVERYTHING = BuildPlan(True, [], frozenset(), frozenset(), frozenset(), 0, 0, "")


class Tables:
    """Counts replaced tables. The second replacement of a table waits until one has failed."""

    def __init__(self) -> None:
        self.replaced: list[str] = []
        self.failed = threading.Event()

    def replace(self, table: Table, rows: object, parts: object, few: bool) -> int:
        if table is TASKS:
            self.failed.set()
            raise BrokenLake("a file is damaged")
        self.replaced.append(table.name)
        self.failed.wait(60)
        return 1


def test_the_first_error_ends_the_other_tables_of_a_build() -> None:
    tables = Tables()
    build = Build(cast(Any, None), cast(Any, tables), EVERYTHING, PipelineSettings())
    rows = cast(Any, object())

    def many() -> None:
        while True:
            build._replace(SERVICE, rows, None)

    with pytest.raises(BrokenLake, match="a file is damaged"):
        build._side_by_side(many, lambda: build._replace(TASKS, rows, None))
    assert tables.replaced
