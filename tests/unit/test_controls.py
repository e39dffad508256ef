"""Pauses of queues on a node, from the settings and from the record of a partition."""

from __future__ import annotations

from types import SimpleNamespace

from fairlead.core.sharding.shares import Members
from fairlead.engine.context import View
from fairlead.engine.controls import Controls
from fairlead.ports.cluster import QueueSettings


class Table:
    """A trigger table that records its paused queues."""

    def __init__(self) -> None:
        self.paused: set[str] = set()

    def pause(self, queue: str) -> None:
        self.paused.add(queue)

    def resume(self, queue: str) -> None:
        self.paused.remove(queue)


def make() -> tuple[Controls, Table]:
    """Return the controls of a node and its table."""
    table = Table()
    context = SimpleNamespace(table=table, events=SimpleNamespace(on_ready=lambda: None))
    return Controls(context, SimpleNamespace()), table  # type: ignore[arg-type]


def view_of(is_paused: bool) -> View:
    settings = QueueSettings(partitions=1, paused=is_paused, version=0)
    return View({"q": settings}, {}, {}, Members({}))


def test_a_node_that_cannot_read_the_settings_keeps_the_pause_that_the_last_owner_knew() -> None:
    controls, table = make()
    controls.keep_pause("q")
    assert controls.is_paused("q") and table.paused == {"q"}
    controls.apply(view_of(True))
    assert table.paused == {"q"}
    controls.apply(view_of(False))
    assert not controls.is_paused("q") and not table.paused


def test_the_settings_of_a_queue_count_more_than_what_the_last_owner_knew() -> None:
    controls, table = make()
    controls.apply(view_of(False))
    controls.keep_pause("q")
    assert not controls.is_paused("q") and not table.paused
