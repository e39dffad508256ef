"""The offsets of Kafka that may be committed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.sharding.offsets import Offsets, Progress
from fairlead.model import PartitionKey
from tests.builders import trigger


@given(
    st.lists(st.integers(0, 200), unique=True, min_size=1).map(sorted),
    st.randoms(use_true_random=False),
    st.data(),
)
def test_the_position_is_the_first_offset_that_is_not_done_in_any_order_of_completion(
    log: list[int], chance, data: st.DataObject
) -> None:
    offsets = Offsets()
    read: list[int] = []
    done: set[int] = set()
    left = list(log)
    while left or len(done) < len(read):
        undone = [offset for offset in read if offset not in done]
        if left and (not undone or chance.random() < 0.5):
            read.append(left.pop(0))
            offsets.read(read[-1])
            if chance.random() < 0.2:
                offsets.read(read[-1])  # a message read twice
        else:
            one = data.draw(st.sampled_from(undone))
            done.add(one)
            offsets.done(one)
            offsets.done(one)
        undone = [offset for offset in read if offset not in done]
        held = [offset for offset in read if not undone or offset >= undone[0]] if undone else []
        assert len(offsets) == len(held)
        assert offsets.position == (undone[0] if undone else read[-1] + 1)


KEY = PartitionKey("mail", 1)


def test_a_message_is_done_with_its_trigger_and_committed_once() -> None:
    progress = Progress()
    progress.begin([KEY])
    assert progress.to_commit() == {}
    for offset, task_id in enumerate("abc"):
        progress.read(KEY, offset)
        progress.hold(task_id, KEY, offset, now=1.0)
    assert progress.to_commit() == {KEY: 0}
    progress.settled([trigger("b"), trigger("unknown")])
    assert progress.to_commit() == {}
    progress.settled([trigger("a")])
    assert progress.holds("c") and not progress.holds("a")
    assert progress.to_commit([KEY]) == {KEY: 2}
    assert progress.to_commit() == {}


def test_messages_held_too_long_are_released_and_others_are_not() -> None:
    progress = Progress()
    progress.begin([KEY])
    for offset, at in enumerate([1.0, 2.0, 9.0]):
        progress.read(KEY, offset)
        progress.hold(f"task-{offset}", KEY, offset, at)
    progress.release_before(2.0)
    assert progress.to_commit() == {KEY: 2} and progress.holds("task-2")


def test_offsets_of_a_revoked_partition_are_dropped() -> None:
    progress, other = Progress(), PartitionKey("mail", 2)
    progress.begin([KEY, other])
    for key in (KEY, other):
        progress.read(key, 5)
        progress.hold(f"task-{key.partition}", key, 5, 1.0)
    progress.end([KEY])
    assert KEY not in progress and other in progress
    assert not progress.holds("task-1") and progress.holds("task-2")
    progress.settled([trigger("task-1")])
    progress.done(KEY, 5)
    progress.begin([KEY])
    progress.read(KEY, 3)
    progress.done(KEY, 3)
    assert progress.to_commit() == {other: 5, KEY: 4}
