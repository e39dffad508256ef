"""One lane of a fair backlog under faults: the real core over a store that loses responses, on a
virtual clock.

A schedule is a seed: every step is drawn from it. The request of a call to the store, its effect
and its response are three steps, and anything may come between them. A call that timed out may have
taken effect, may take effect later, or never. An owner may crash between any two steps, or lose the
lane to a new owner without noticing.

    python -m tests.simulation.backlog_simulation SEED
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from random import Random
from typing import Any
from uuid import UUID

from fairlead.core.levels.backlog import NO_CHANGES, Backlog, Changes, Timing
from fairlead.model import LaneRecord, Trigger
from fairlead.ports.backlog_store import Fenced, OwnedBacklog
from tests import builders
from tests.simulation.backlog_lane import (
    CLAIM,
    LANE,
    PARTITION,
    Call,
    Owner,
    Task,
    above,
    key_of,
    level_of,
    shown,
)
from tests.simulation.backlog_promises import (
    check_levels,
    check_memory,
    check_next_owner,
    check_none_lost,
)
from tests.simulation.level_store import LevelStore

KEYS = "abcd"
NAMES = ("mail", "pay", "sync")
WEIGHTS = (1.0, 1.0, 5.0, 0.5)

MOST_WAITING = 30
"""Maximum number of tasks submitted and not yet claimed."""

LINES_SHOWN = 30


class Broken(Exception):
    """Raised for a broken promise, with the schedule and its last steps."""


class Simulation:
    """One schedule. Raises Broken as soon as a promise is broken."""

    def __init__(
        self,
        seed: int,
        backlog: type[Backlog] = Backlog,
        store: type[LevelStore] = LevelStore,
    ) -> None:
        self.seed = seed
        self.chance = Random(seed)
        self.store = store()
        self.tasks: list[Task] = []
        self.waiting: dict[tuple[str, int], Task] = {}
        """Tasks that no owner has claimed."""
        self.range_id = 0
        """Range id of the last take-over, also if its owner never received the response."""
        self.owner: Owner | None = None
        self.former: Owner | None = None
        """Former owner that does not know of its successor."""
        self.calls: list[Call] = []
        self.late: list[Call] = []
        """Calls that no owner waits for and that may still take effect."""
        self.held: set[str] = set()
        """Names that a limit holds back."""
        self.now = 0.0
        self.furthest_position = 0
        self.ids: set[int] = set()
        self.steps = 0
        self.lines: deque[tuple[Any, ...]] = deque(maxlen=LINES_SHOWN)
        self._backlog = backlog
        self._capacity = self.chance.randint(1, self.chance.choice((3, 8, 20)))
        self._timing = Timing(
            delete_seconds=self.chance.choice((1.0, 5.0, 50.0)),
            delete_acks=self.chance.choice((1, 5, 1000)),
            persist_seconds=self.chance.choice((1.0, 5.0, 50.0)),
        )
        # Each schedule has its own odds: an event rare in one is frequent in another.
        self._kinds = [*self._steps()]
        self._leans = [
            weight * self.chance.choice((0.2, 1.0, 1.0, 3.0)) for _, weight in self._kinds
        ]
        self._is_faulty = self.chance.random() < 0.9
        self._slow = self.chance.choice((None, "write", "write", "read", CLAIM))
        """Kind of call that takes long, so that many other steps come between its steps."""
        self._crashes = self.chance.choice((0.0, 0.01, 0.03, 0.06))

    def run(self) -> None:
        """Run all steps with faults, then drain everything without faults."""
        try:
            for _ in range(self.chance.randint(30, 110)):
                self._step()
                self._check()
            self._drain()
            self._check_end()
        except Exception as error:
            raise Broken(self._report(error)) from error

    # steps ----------------------------------------------------------------------------------------

    def _steps(self) -> Iterator[tuple[Callable[[], bool], float]]:
        """Yield the kinds of steps and their odds. A step that is impossible now returns False."""
        yield self._submit, 2.0
        yield self._commit, 1.0
        yield self._announce, 1.0
        yield self._hold, 0.5
        yield self._tick, 1.0
        yield self._land, 6.0
        yield self._return_response, 6.0
        yield self._time_out, 1.0
        yield self._land_late, 1.0
        yield self._with_an_owner(self._resize), 0.2
        yield from ((self._with_an_owner(step), weight) for step, weight in self._owner_steps())

    def _owner_steps(self) -> Iterator[tuple[Callable[[Owner], bool], float]]:
        yield self._take_in, 3.0
        yield self._make_room, 1.0
        yield self._write, 3.0
        yield self._shrink, 1.0
        yield self._read, 2.0
        yield self._dispatch, 3.0
        yield self._ack, 3.0
        yield self._delete, 1.0
        yield self._keep_record, 1.0

    def _step(self) -> None:
        self.steps += 1
        fate = self.chance.random()
        if self.owner is None or fate < self._crashes:
            self._change_owner()
            return
        for step, _ in self.chance.choices(self._kinds, self._leans, k=20):
            if step():
                return

    def _with_an_owner(self, step: Callable[[Owner], bool]) -> Callable[[], bool]:
        def made() -> bool:
            owner = (
                self.former
                if self.former is not None and self.chance.random() < 0.3
                else self.owner
            )
            return owner is not None and step(owner)

        return made

    def _change_owner(self) -> None:
        if self.owner is not None and self.chance.random() < 0.5:
            self._log("the owner %d crashes", self.owner.range_id)
            self._leave(self.owner)
        else:
            self._take_over()

    def _take_over(self) -> None:
        """Make a new owner while the previous one, if any, still believes that it owns the lane."""
        ownership: OwnedBacklog = _result(self.store.take_over([PARTITION]))[PARTITION]
        self.range_id = ownership.range_id
        if self._is_faulty and self.chance.random() < 0.1:
            self._log("a new owner takes over, but never receives the response")
            return
        if self.former is not None:
            self._leave(self.former)
        self.former = self.owner
        record = ownership.lanes.get(LANE.priority, LaneRecord())
        backlog = self._new_backlog(self.range_id, record)
        self.owner = Owner(self.range_id, backlog, backlog.read_seq, ack_level=backlog.ack_level)
        for task in self.waiting.values():
            # The previous owner may have learnt of a late task by an announcement only. A sweep
            # announces such a task to the new owner.
            task.is_to_be_announced = (
                task.is_committed and task.is_late and task.trigger.seq <= backlog.read_seq
            )
        self._log("owner %d takes over: %s", self.range_id, record)

    def _new_backlog(self, range_id: int, record: LaneRecord) -> Backlog:
        return self._backlog(range_id, record, self._capacity, self._timing)

    def _leave(self, owner: Owner) -> None:
        """Drop the memory of an owner; its calls under way may still take effect."""
        for call in [call for call in self.calls if call.owner is owner]:
            self._abandon(call)
        if owner is self.owner:
            self.owner = None
        else:
            self.former = None

    def _resize(self, owner: Owner) -> bool:
        """Change the capacity, because the lanes of a node share its memory."""
        owner.backlog.capacity = self.chance.randint(1, self._capacity)
        self._log("owner %d has room for %d", owner.range_id, owner.backlog.capacity)
        return True

    # the source -----------------------------------------------------------------------------------

    def _submit(self) -> bool:
        if len(self.waiting) >= MOST_WAITING:
            return False
        for _ in range(self.chance.choice((1, 1, 2, 4))):
            seq = len(self.tasks) + 1
            ended = [task for task in self.tasks if task.runs]
            if ended and self.chance.random() < 0.15:
                again = self.chance.choice(ended).trigger.id
                version = 1 + max(
                    task.trigger.version for task in self.tasks if task.trigger.id == again
                )
                if (again, version - 1) in self.waiting:
                    continue
            else:
                again, version = str(UUID(int=seq)), 1
            trigger = builders.trigger(
                again,
                name=self.chance.choice(NAMES),
                key=self.chance.choice(KEYS),
                weight=self.chance.choice(WEIGHTS),
                version=version,
                seq=seq,
                **LANE._asdict(),
            )
            task = Task(trigger, is_committed=False)
            self.tasks.append(task)
            self.waiting[key_of(trigger)] = task
            if self.chance.random() < 0.8:
                self._appear(task)
            else:
                self._log("submitted, not yet committed: %s", trigger)
        return True

    def _commit(self) -> bool:
        waiting = [task for task in self.tasks if not task.is_committed]
        if not waiting:
            return False
        self._appear(self.chance.choice(waiting))
        return True

    def _appear(self, task: Task) -> None:
        task.is_committed = True
        task.is_late = task.trigger.seq <= self.furthest_position
        task.is_to_be_announced = task.is_late
        self._log("committed%s: %s", " late" if task.is_late else "", task.trigger)

    def _announce(self) -> bool:
        """Announce a late task, so that the owner reads the source again from there."""
        late = [task for task in self.waiting.values() if task.is_to_be_announced]
        if not late or self.owner is None:
            return False
        task = self.chance.choice(late)
        task.is_to_be_announced = False
        self.owner.position = min(self.owner.position, task.trigger.seq - 1)
        self._log("announced: %s", task.trigger)
        return True

    def _take_in(self, owner: Owner) -> bool:
        """Read on in the source, and ask the store which of the tasks behind the position already
        have a level."""
        backlog = owner.backlog
        if owner.intake is not None or not backlog.can_add:
            return False
        limit = self.chance.choice((1, 2, 5, 10))
        found = [
            task for task in self.tasks[owner.position :] if task.is_committed and not task.runs
        ][:limit]
        if not found:
            return False
        known = set(map(key_of, owner.in_memory()))
        news = [task.trigger for task in found if key_of(task.trigger) not in known]
        passed = backlog.read_seq if backlog.is_stored else -1
        is_to_check = any(trigger.seq <= passed for trigger in news)
        if is_to_check and owner.is_calling:
            return False
        before, owner.position = owner.position, found[-1].trigger.seq
        self.furthest_position = max(self.furthest_position, owner.position)
        self._log("owner %d takes in %s", owner.range_id, news)
        if not is_to_check:
            if news:
                self._level(owner, news)
            return True
        owner.intake = news

        def on_entries(entries: list[Trigger]) -> None:
            levelled = set(map(key_of, entries))
            triggers = [trigger for trigger in news if key_of(trigger) not in levelled]
            owner.intake = None
            if not backlog.can_add:
                read_again()
            elif triggers:
                self._level(owner, triggers)

        def read_again() -> None:
            owner.intake = None
            owner.position = min(owner.position, before)

        level, ids = backlog.ack_level, [trigger.id for trigger in news]
        self._call(
            owner,
            "check",
            lambda: self.store.entries(LANE, level, ids),
            on_entries,
            read_again,
            may_be_late=False,
        )
        return True

    def _level(self, owner: Owner, triggers: Sequence[Trigger]) -> None:
        given = owner.backlog.add(triggers).added
        self._log("owner %d keeps in memory %s", owner.range_id, given)
        self._apply(owner, Changes(given))
        self._check_given(owner, triggers, given or self._placed(owner, triggers))

    def _make_room(self, owner: Owner) -> bool:
        """Evict triggers that a limit holds back."""
        held = [
            level for level, trigger in sorted(owner.table.items()) if trigger.name in self.held
        ]
        if not held or owner.is_calling or owner.backlog.write is not None:
            return False
        triggers = [
            owner.table.pop(level)
            for level in self.chance.sample(held, self.chance.randint(1, len(held)))
        ]
        self._log("owner %d evicts %s", owner.range_id, triggers)
        owner.backlog.evict(triggers)
        self._check_given(owner, triggers, self._placed(owner, triggers))
        return True

    def _shrink(self, owner: Owner) -> bool:
        """Drop triggers that no longer fit in memory."""
        if owner.is_calling or owner.backlog.write is not None:
            return False
        self._apply(owner, changes := owner.backlog.shrink())
        return changes is not NO_CHANGES or owner.backlog.write is not None

    def _placed(self, owner: Owner, triggers: Sequence[Trigger]) -> list[Trigger]:
        """Return the triggers at their levels in the write that has begun."""
        assert owner.backlog.write is not None
        keys = set(map(key_of, triggers))
        owner.placed = [entry for entry in owner.backlog.write.entries if key_of(entry) in keys]
        return owner.placed

    def _check_given(self, owner: Owner, triggers: Sequence[Any], given: Sequence[Trigger]) -> None:
        assert len(given) == len(triggers), "some triggers got no level"
        for trigger in given:
            level = level_of(trigger)
            assert level.id not in self.ids, f"level given twice: {shown(level)}"
            self.ids.add(level.id)
            assert owner.has_acked_a_successor or level > owner.backlog.ack_level, (
                f"level given at or below A: {shown(level)}"
            )

    # writing and reading --------------------------------------------------------------------------

    def _write(self, owner: Owner) -> bool:
        write = owner.backlog.write
        if write is None or owner.is_calling:
            return False
        self._log("owner %d is to write %s", owner.range_id, write.entries)

        def written(_: None) -> None:
            owner.placed = ()
            self._apply(owner, owner.backlog.written(self.now))

        self._call(
            owner,
            "write",
            lambda: self.store.write(LANE, owner.range_id, write.entries, write.record),
            written,
            owner.backlog.write_failed,
        )
        return True

    def _read(self, owner: Owner) -> bool:
        if owner.is_calling or owner.backlog.write is not None:
            return False
        if (reading := owner.backlog.next_read()) is None:
            return False
        assert reading.above >= owner.backlog.ack_level, "reads at or below A"
        assert reading.limit > 0
        self._log("owner %d reads %d above %s", owner.range_id, reading.limit, reading.above)
        self._call(
            owner,
            "read",
            lambda: self.store.read_above(LANE, *reading),
            lambda rows: self._apply(owner, owner.backlog.read(reading, rows)),
            lambda: None,
            may_be_late=False,
        )
        return True

    def _apply(self, owner: Owner, changes: Changes) -> None:
        if changes is NO_CHANGES:
            return
        self._log("owner %d: added %s, dropped %s", owner.range_id, changes.added, changes.dropped)
        for trigger in changes.dropped:
            del owner.table[level_of(trigger)]
        for trigger in changes.added:
            assert level_of(trigger) not in owner.table, f"added twice: {shown(trigger)}"
            owner.table[level_of(trigger)] = trigger

    # dispatch -------------------------------------------------------------------------------------

    def _dispatch(self, owner: Owner) -> bool:
        """Take the lowest triggers that no limit holds back and claim them, by a compare-and-set on
        the source."""
        free = sorted(
            level for level, trigger in owner.table.items() if trigger.name not in self.held
        )
        if not free:
            return False
        triggers = [owner.table.pop(level) for level in free[: self.chance.choice((1, 1, 2, 4))]]
        owner.backlog.take(triggers)
        self._log("owner %d takes %s", owner.range_id, triggers)

        def given_back() -> None:
            owner.backlog.take_back(triggers)
            owner.table.update((level_of(trigger), trigger) for trigger in triggers)

        self._call(
            owner,
            CLAIM,
            lambda: self._claim(triggers),
            lambda _: owner.to_ack.extend(triggers),
            given_back,
        )
        return True

    async def _claim(self, triggers: Iterable[Trigger]) -> None:
        for trigger in triggers:
            task = self.waiting.pop(key_of(trigger), None)
            if task is not None:
                assert task.is_committed
                task.runs += 1

    def _ack(self, owner: Owner) -> bool:
        if not owner.to_ack:
            return False
        count = self.chance.randint(1, len(owner.to_ack))
        triggers = self.chance.sample(owner.to_ack, count)
        owner.to_ack = [trigger for trigger in owner.to_ack if trigger not in triggers]
        owner.backlog.ack(triggers)
        self._log("owner %d acks %s", owner.range_id, triggers)
        return True

    # deletes and records --------------------------------------------------------------------------

    def _tick(self) -> bool:
        self.now += self.chance.choice((0.5, 1.0, 5.0, 20.0))
        return True

    def _hold(self) -> bool:
        self.held ^= {self.chance.choice(NAMES)}
        self._log("held back: %s", sorted(self.held))
        return True

    def _delete(self, owner: Owner) -> bool:
        through = None if owner.is_calling else owner.backlog.next_delete(self.now)
        if through is None:
            return False
        assert through <= owner.backlog.ack_level, "deletes above A"
        self._log("owner %d deletes through %s", owner.range_id, through)
        self._call(
            owner,
            "delete",
            lambda: self.store.delete_through(LANE, owner.range_id, through),
            lambda _: owner.backlog.upkeep.deleted(through, self.now),
            lambda: None,
        )
        return True

    def _keep_record(self, owner: Owner) -> bool:
        if owner.is_calling:
            return False
        record = owner.backlog.next_record(self.now)
        if record is None:
            return False
        self._log("owner %d keeps %s", owner.range_id, record)
        self._call(
            owner,
            "record",
            lambda: self.store.write(LANE, owner.range_id, (), record),
            lambda _: owner.backlog.upkeep.recorded(record, self.now),
            lambda: None,
        )
        return True

    # calls and their outcomes ---------------------------------------------------------------------

    def _call(
        self,
        owner: Owner,
        what: str,
        act: Callable[[], Coroutine[Any, Any, Any]],
        answered: Callable[[Any], None],
        failed: Callable[[], None],
        may_be_late: bool = True,
    ) -> None:
        owner.is_calling |= what != CLAIM
        self.calls.append(Call(owner, what, act, answered, failed, may_be_late))

    def _land(self) -> bool:
        call = self._next_call(has_landed=False)
        if call is None:
            return False
        self._do(call)
        return True

    def _do(self, call: Call) -> None:
        """Carry out a call, unless it is refused."""
        call.has_landed = True
        is_stale = call.owner.range_id != self.range_id
        before = (list(self.store.rows(LANE)), self.store.record(LANE)) if is_stale else None
        try:
            call.answer = _result(call.act())
        except Fenced:
            call.is_fenced = True
        self._log(
            "lands: %s of owner %d%s",
            call.what,
            call.owner.range_id,
            ", refused" if call.is_fenced else "",
        )
        if is_stale:
            after = (list(self.store.rows(LANE)), self.store.record(LANE))
            assert before == after, (
                f"a {call.what} of the former owner {call.owner.range_id} took effect"
            )

    def _return_response(self) -> bool:
        call = self._next_call(has_landed=True)
        if call is None:
            return False
        self._deliver_response(call)
        return True

    def _next_call(self, has_landed: bool) -> Call | None:
        calls = [call for call in self.calls if call.has_landed == has_landed]
        if not calls:
            return None
        call = self.chance.choice(calls)
        return None if call.what == self._slow and self.chance.random() < 0.8 else call

    def _deliver_response(self, call: Call) -> None:
        self.calls.remove(call)
        call.owner.is_calling &= call.what == CLAIM
        self._log("response: %s of owner %d", call.what, call.owner.range_id)
        if call.is_fenced:
            self._log("owner %d learns that it has a successor", call.owner.range_id)
            self._leave(call.owner)
        else:
            call.answered(call.answer)

    def _time_out(self) -> bool:
        if not self.calls or not self._is_faulty:
            return False
        call = self.chance.choice(self.calls)
        self._log(
            "times out%s: %s of owner %d",
            ", done" * call.has_landed,
            call.what,
            call.owner.range_id,
        )
        self._abandon(call)
        call.failed()
        return True

    def _abandon(self, call: Call) -> None:
        """Abandon a call: its owner no longer waits for it."""
        self.calls.remove(call)
        call.owner.is_calling &= call.what == CLAIM
        if call.may_be_late and not call.has_landed and self.chance.random() < 0.5:
            self.late.append(call)

    def _land_late(self) -> bool:
        if not self.late:
            return False
        call = self.late.pop(self.chance.randrange(len(self.late)))
        self._log("late:")
        self._do(call)
        return True

    # promises -------------------------------------------------------------------------------------

    def _check(self) -> None:
        rows, record = self.store.rows(LANE), self.store.record(LANE)
        check_next_owner(
            record,
            above(rows, record.ack_level),
            self.waiting,
            lambda: self._new_backlog(0, record),
        )
        for owner in (self.owner, self.former):
            if owner is not None:
                check_levels(owner)
        if self.owner is not None:
            stored = above(rows, self.owner.backlog.ack_level)
            check_none_lost(self.owner, stored, self.waiting)
            check_memory(self.owner.backlog, {level_of(row) for row in stored})

    # the end --------------------------------------------------------------------------------------

    def _drain(self) -> None:
        """Run without faults and limits until every task has run."""
        self._log("no more faults")
        self._is_faulty = False
        self._slow = None
        self.held = set()
        for task in self.tasks:
            if not task.is_committed:
                self._appear(task)
        while self.late:
            self._land_late()
            self._check()
        if self.former is not None:
            self._leave(self.former)
        if self.owner is None or self.owner.range_id != self.range_id:
            self._take_over()
        for _ in range(10 * len(self.tasks) + 10):
            owner = self.owner
            if owner is None:
                self._take_over()
                continue
            made = [self._announce()] + [step(owner) for step, _ in self._owner_steps()]
            while self.calls and self.owner is owner:
                made.append(True)
                self._land()
                self._check()
                self._return_response()
                self._check()
            self.now += 1.0
            if not any(made) and self.owner is owner:
                return
        raise AssertionError(f"does not drain: {len(self.waiting)} tasks wait")

    def _check_end(self) -> None:
        owner = self.owner
        assert owner is not None
        backlog = owner.backlog
        not_once = [task for task in self.tasks if task.runs != 1]
        assert not not_once, (
            f"not run exactly once: {[(shown(task.trigger), task.runs) for task in not_once]}"
        )
        assert backlog.is_at_end and not len(backlog), "the reader is not at the end of the store"
        assert backlog.read_level >= backlog.ack_level >= backlog.max_level, (
            "R, A and M do not agree"
        )
        # The next owner deletes also what a late write has brought back.
        range_id = _result(self.store.take_over([PARTITION]))[PARTITION].range_id
        _result(self.store.delete_through(LANE, range_id, backlog.ack_level))
        assert not self.store.rows(LANE), "rows are left"

    # messages -------------------------------------------------------------------------------------

    def _log(self, line: str, *values: Any) -> None:
        self.lines.append((self.steps, line, *values))

    def _report(self, error: Exception) -> str:
        lines = [
            f"{step:4}  {line % tuple(map(shown, values))}" for step, line, *values in self.lines
        ]
        cause = str(error) or type(error).__name__
        return "\n".join(
            [
                f"{cause} (schedule {self.seed}, step {self.steps}, capacity {self._capacity})",
                *lines,
                f"again: python -m tests.simulation.backlog_simulation {self.seed}",
            ]
        )


def _result(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a coroutine that must not wait for anything."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("the store in memory waited")


if __name__ == "__main__":
    try:
        Simulation(int(sys.argv[1])).run()
    except Broken as broken:
        sys.exit(str(broken))
    print("kept every promise")
