"""Live observations every two seconds and the minutes of the tables name the same incidents of a history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.clock import MICROS
from fairlead.pipeline.incidents.detector import MINUTE, Detector, Observation, Rules
from fairlead.pipeline.incidents.over_history import DAY_MINUTES, Minute, incidents_from
from tests.tiers import examples

BEGIN = 29_833_920  # a midnight, in minutes
STEP = 2
KINDS = ("stall", "flood", "error burst", "node loss")
Episode = tuple[str, int, int]
"""Kind, seconds of quiet before it, and its length in seconds."""
Named = tuple[str, str, int]
"""Kind, subject, and the minute of the begin."""


@dataclass
class Second:
    """Counts of a queue in a second."""

    arrived: Counter[str] = field(default_factory=Counter)
    claimed: int = 0
    done: int = 0
    failed: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    oldest: int | None = None
    """Second since which the oldest waiting task waits."""


def history(episodes: Iterable[Episode]) -> list[Second]:
    """Return the seconds of a queue with two tasks a second, of which each is run at once, except in
    episodes: stalls, floods of a new key, runs that fail, and lost runs of a new node."""
    seconds: list[Second] = []
    oldest: int | None = None

    def during(kind: str, number: int, length: int) -> None:
        nonlocal oldest
        for n in range(length):
            second = Second(Counter(a=1, b=1))
            waits = 0 if oldest is None else len(seconds) - oldest
            if kind == "flood":
                second.arrived[f"flood-{number}"] = 40
            if kind == "stall":
                oldest = len(seconds) if oldest is None else oldest
            else:
                oldest = None
                second.claimed = second.arrived.total() + 2 * waits
                if kind == "error burst":
                    second.failed = second.claimed
                else:
                    second.done = second.claimed
                if kind == "node loss" and n == 0:
                    second.lost[f"node-{number}"] = 1
            second.oldest = oldest
            seconds.append(second)

    for number, (kind, quiet, length) in enumerate(episodes):
        during("", number, quiet)
        during(kind, number, length)
    during("", -1, 900)
    del seconds[len(seconds) - len(seconds) % 60 :]
    return seconds


def live(seconds: list[Second]) -> Iterator[Named]:
    """Yield the incidents that observations every two seconds show."""
    detector = Detector(Rules(), BEGIN * MINUTE)
    for begin in range(0, len(seconds), STEP):
        of = seconds[begin : begin + STEP]
        at = BEGIN * MINUTE + (begin + STEP) * MICROS
        oldest = of[-1].oldest
        arrived = sum((each.arrived for each in of), Counter())
        before = {*detector.open}
        detector.observe(
            Observation(
                queue="q",
                at=at,
                time=at,
                waits_since=None if oldest is None else BEGIN * MINUTE + oldest * MICROS,
                running=0,
                done=sum(each.done for each in of),
                failed=sum(each.failed for each in of),
                arrived=arrived.total(),
                keys=dict(arrived),
                lost=dict(sum((each.lost for each in of), Counter())),
            )
        )
        for name in detector.open.keys() - before:
            yield *name, detector.open[name].start // MINUTE


def over_tables(seconds: list[Second]) -> Iterator[Named]:
    """Yield the incidents that the minutes of the tables show."""
    minutes = []
    for begin in range(0, len(seconds), 60):
        of = seconds[begin : begin + 60]
        oldest = of[-1].oldest
        arrived = sum((each.arrived for each in of), Counter())
        minutes.append(
            Minute(
                depth_end=int(oldest is not None),
                waits_since=None if oldest is None else BEGIN * MINUTE + oldest * MICROS,
                arrived=arrived.total(),
                claimed=sum(each.claimed for each in of),
                done=sum(each.done for each in of),
                failed=sum(each.failed for each in of),
                keys=dict(arrived),
                lost=dict(sum((each.lost for each in of), Counter())),
            )
        )
    numbered = zip(count(BEGIN), minutes, strict=False)
    for window in incidents_from("q", numbered, BEGIN, BEGIN + DAY_MINUTES, Rules()):
        yield window.kind, window.subject, window.start


_EPISODES = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(600, 1500), st.integers(150, 1200)), max_size=3
)


@settings(max_examples=examples(100), deadline=None)
@given(_EPISODES)
def test_observations_and_tables_name_the_same_incidents(episodes: list[Episode]) -> None:
    seconds = history(episodes)
    seen, found = sorted(live(seconds)), sorted(over_tables(seconds))
    assert [name[:2] for name in seen] == [name[:2] for name in found]
    assert Counter(kind for kind, _, _ in seen) == Counter(kind for kind, _, _ in episodes)
    assert all(abs(one[2] - other[2]) <= 2 for one, other in zip(seen, found, strict=True))
