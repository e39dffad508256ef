"""Progress, checkpoints and log lines of runs. The contract suite covers the stores."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from fairlead import App, ConfigurationError, Fixed, InvalidTask, NoRetry, State, current_task
from fairlead.declare.current import CurrentTask
from fairlead.errors import NotSupported
from fairlead.model import ProgressReport
from fairlead.ports.statements import Statement
from fairlead.testing import drain

AGAIN = Fixed(0.001, max_attempts=3)


def running() -> CurrentTask:
    task = current_task()
    assert task is not None
    return task


# progress -----------------------------------------------------------------------------------------


async def test_the_last_progress_is_seen_during_the_run_and_after_it(app: App) -> None:
    go = threading.Event()

    @app.task(name="load", retry=NoRetry())
    def load() -> None:
        for row in range(5):
            running().progress(row, 10, f"row {row}")
        go.wait(30)
        running().progress(10, 10)

    handle = load.submit()
    assert handle.progress() is None
    node = asyncio.create_task(drain(app))
    while (seen := await handle.progress_async()) is None or seen.done < 4:
        await asyncio.sleep(0.01)
    assert (seen.done, seen.total, seen.note, seen.attempt) == (4, 10, "row 4", 1)
    go.set()
    await node
    ended = handle.progress()
    assert ended is not None and (ended.done, ended.note) == (10, None)
    assert handle.state() == State.DONE


async def test_a_node_writes_the_progress_of_all_its_tasks_in_one_statement_a_second(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[int] = []
    kind = type(app.store)
    write = kind.write_progress

    async def counted(self: Any, node: str, reports: Sequence[ProgressReport]) -> None:
        writes.append(len(reports))
        await write(self, node, reports)

    monkeypatch.setattr(kind, "write_progress", counted)

    @app.task(name="count")
    async def count() -> None:
        for row in range(300):
            running().progress(row)
            await asyncio.sleep(0.01)

    count.submit_many([{}] * 20)
    began = time.monotonic()
    await drain(app)
    seconds = time.monotonic() - began
    assert len(writes) <= seconds / 1.0 + 2
    assert max(writes) == 20


async def test_tasks_without_notes_cost_no_statement(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = {app.sql_store.sql[name]: name for name in ("write_progress", "keep_notes")}
    seen: list[str] = []
    of = type(app.store).statement

    def statement(self: Any, name: str, *params: Any) -> Statement:
        seen.append(name)
        return of(self, name, *params)  # type: ignore[no-any-return]

    monkeypatch.setattr(type(app.store), "statement", statement)

    @app.task(name="plain", keep_result=True)
    async def plain(n: int) -> int:
        return n

    plain.submit_many([{"n": n} for n in range(20)])
    await drain(app)
    assert "claim" in seen
    assert not set(seen) & {*named.values(), "store_checkpoint"}


async def test_progress_out_of_range_is_refused_and_fails_the_run(app: App) -> None:
    found: list[str] = []

    @app.task(name="bad", retry=NoRetry())
    def bad() -> None:
        for given in ((-1,), (float("nan"),), ("3",), (1, -1), (1, 2, 3)):
            with pytest.raises(InvalidTask) as caught:
                running().progress(*given)  # type: ignore[arg-type]
            found.append(str(caught.value))

    handle = bad.submit()
    await drain(app)
    assert handle.state() == State.DONE and len(found) == 5


@pytest.mark.parametrize(
    ("note", "kept"),
    [
        ("x" * 1000, "x" * 1000),
        ("x" * 1001, "x" * 997 + "\N{HORIZONTAL ELLIPSIS}"),
        ("\N{SNOWMAN}" * 333 + "x", "\N{SNOWMAN}" * 333 + "x"),
        ("\N{SNOWMAN}" * 334, "\N{SNOWMAN}" * 332 + "\N{HORIZONTAL ELLIPSIS}"),
        ("x\N{SNOWMAN}" * 10_000_000, "x\N{SNOWMAN}" * 249 + "x\N{HORIZONTAL ELLIPSIS}"),
        ("a\0b\udc80", "a\\0b\\udc80"),
        ("", ""),
    ],
    ids=["whole", "ascii", "characters", "cut characters", "huge", "not storable", "empty"],
)
async def test_a_note_never_fails_its_run_and_is_cut_at_a_whole_character(
    app: App, note: str, kept: str, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(name="load", retry=NoRetry())
    async def load() -> None:
        for row in range(3):
            running().progress(row, 2, note)

    handle = load.submit()
    await drain(app)
    assert handle.state() == State.DONE
    seen = handle.progress()
    assert seen is not None and (seen.done, seen.note) == (2, kept)
    cuts = [each for each in caplog.records if "too long and was cut" in each.message]
    assert [each.task_id for each in cuts] == [handle.id] * kept.endswith(  # type: ignore[attr-defined]
        "\N{HORIZONTAL ELLIPSIS}"
    )


# checkpoints --------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [True, False])
async def test_the_next_attempt_reads_the_checkpoint_and_the_end_of_the_task_drops_it(
    app: App, is_async: bool
) -> None:
    read: list[Any] = []

    def begin() -> dict[str, int]:
        read.append(running().last_checkpoint)
        return {"row": 10 * len(read)}

    def end(value: dict[str, int]) -> None:
        assert running().last_checkpoint == value
        if len(read) < 3:
            raise ValueError("again")

    if is_async:

        @app.task(name="load", retry=AGAIN)
        async def load() -> None:
            value = begin()
            await running().checkpoint_async(value)
            end(value)

    else:

        @app.task(name="load", retry=AGAIN)
        def load() -> None:
            value = begin()
            running().checkpoint(value)
            end(value)

    handle = load.submit()
    await drain(app)
    assert handle.state() == State.DONE
    assert read == [None, {"row": 10}, {"row": 20}]


async def test_a_checkpoint_is_bounded_and_names_its_limit(app: App) -> None:
    texts: list[str] = []

    @app.task(name="big", retry=NoRetry())
    async def big() -> None:
        for value in ("x" * 65_535, object()):
            with pytest.raises(InvalidTask) as caught:
                await running().checkpoint_async(value)
            texts.append(str(caught.value))
        with pytest.raises(InvalidTask, match="checkpoint_async"):
            running().checkpoint(1)
        await running().checkpoint_async("x" * 65_000)

    handle = big.submit()
    await drain(app)
    assert handle.state() == State.DONE
    assert "65,536" in texts[0] and "checkpoint_limit on the App" in texts[0]
    assert "JSON" in texts[1]


async def test_a_transactional_handler_and_an_ordered_queue_say_what_they_cannot_do(
    app: App,
) -> None:
    texts: list[str] = []
    app.queue("letters", kind="ordered", partitions=1)

    @app.task(name="pay", transactional=True, retry=NoRetry())
    def pay(connection: Any) -> None:
        running().progress(1, 2)
        with pytest.raises(NotSupported) as caught:
            running().checkpoint(1)
        texts.append(str(caught.value))

    @app.task(name="letter", queue="letters")
    async def letter() -> None:
        for call in (running().progress, running().checkpoint):
            with pytest.raises(NotSupported) as caught:
                call(1)
            texts.append(str(caught.value))

    paid = pay.submit()  # type: ignore[call-arg]
    letter.options(ordering_key="a").submit()
    await drain(app)
    assert len(texts) == 3
    progress = paid.progress()
    assert progress is not None and progress.done == 1
    with pytest.raises(ConfigurationError, match="keep_log"):
        app.task(name="kept", queue="letters", keep_log=True)(lambda: None)


# log lines ----------------------------------------------------------------------------------------


async def test_the_last_log_lines_of_each_attempt_are_kept_if_the_task_asks_for_it(
    app: App,
) -> None:
    log = logging.getLogger("shop.payments")

    @app.task(name="pay", retry=AGAIN, keep_log=True)
    async def pay() -> None:
        log.warning("attempt %d <b>begins</b>\x00", running().attempt)
        try:
            raise KeyError("card")
        except KeyError:
            log.exception("no card")
        if running().attempt == 1:
            raise ValueError("again")
        for n in range(300):
            log.warning("line %d", n)

    @app.task(name="quiet")
    def quiet() -> None:
        log.warning("not kept")

    handle, other = pay.submit(), quiet.submit()
    await drain(app)
    first, second = app.management.notes(handle.id)
    assert [line.text for line in first.lines][:1] == ["attempt 1 <b>begins</b>\\0"]
    assert (first.lines[0].level, first.lines[0].logger) == ("WARNING", "shop.payments")
    assert first.lines[1].text.startswith("no card\nTraceback") and first.dropped == 0
    assert len(second.lines) == 200 and second.dropped == 102
    assert second.lines[-1].text == "line 299"
    assert app.management.notes(other.id) == []
    assert not any("Collector" in type(each).__name__ for each in logging.getLogger().handlers)


async def test_an_application_may_keep_the_logs_of_all_its_tasks(sqlite_url: str) -> None:
    app = App(sqlite_url, keep_log=True)

    @app.task(name="big")
    def big() -> None:
        for _ in range(20):
            logging.getLogger("big").error("x" * 5000)

    @app.task(name="off", keep_log=False)
    def off() -> None:
        logging.getLogger("big").error("no")

    handle, other = big.submit(), off.submit()
    await drain(app)
    (notes,) = app.management.notes(handle.id)
    assert len(notes.lines) == 8 and notes.dropped == 12  # 32,768 characters of 4,000 each
    assert app.management.notes(other.id) == []
    app.close()
