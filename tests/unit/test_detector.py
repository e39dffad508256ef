"""Anomalies of a queue: when they begin, last and end, by hand-made observations and by properties."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import ConfigurationError
from fairlead.clock import MICROS
from fairlead.pipeline.incidents.detector import (
    MINUTE,
    Detector,
    Observation,
    Rules,
)
from fairlead.pipeline.settings import load

BEGIN = 1_790_000_000 * MICROS - 1_790_000_000 * MICROS % MINUTE
RULES = Rules(warm_up_seconds=0)
Change = tuple[str, str, bool]
"""Kind and subject of an anomaly, and whether it ended (or began)."""


@dataclass
class Queue:
    """A watched queue with an observation every two seconds, by a clock that is wrong by `skew`."""

    rules: Rules = RULES
    at: int = BEGIN
    skew: int = 0

    def __post_init__(self) -> None:
        self.detector = Detector(self.rules, self.at)
        self.observe()

    def observe(self, **what: Any) -> list[Change]:
        what = {"arrived": sum(what.get("keys", {}).values())} | what
        before = set(self.detector.open)
        found = Observation(queue="payouts", at=self.at + self.skew, time=self.at, **what)
        ended = self.detector.observe(found)
        begun = self.detector.open.keys() - before
        return [(each.kind, each.subject, True) for each in ended] + [
            (*name, False) for name in sorted(begun)
        ]

    def during(self, seconds: float, **what: Any) -> list[Change]:
        changes = []
        for _ in range(round(seconds / 2)):
            self.at += 2 * MICROS
            changes += self.observe(**what)
        return changes

    def waiting(self, seconds: float, since: int, **what: Any) -> list[Change]:
        return self.during(seconds, waits_since=since, **{"running": 0, **what})

    def start(self, kind: str, subject: str = "*") -> int:
        return self.detector.open[kind, subject].start


def test_a_queue_from_which_no_node_takes_tasks_stalls_until_one_does() -> None:
    queue = Queue()
    queue.during(20, done=5, keys={"a": 5})
    began = queue.at
    assert queue.waiting(8, began) == []
    assert queue.waiting(2, began) == [("stall", "*", False)]
    assert queue.start("stall") == began
    assert queue.waiting(60, began) == []
    assert queue.waiting(2, began, running=1, claimed_at=queue.at + MICROS) == [
        ("stall", "*", True)
    ]


@pytest.mark.parametrize(
    "calm",
    [
        {"running": 0, "done": 1},
        {"running": 3, "claimed_at": BEGIN},
        {"running": 0, "is_paused": True},
        {"running": 0, "waits_since": None},
        {"running": 0, "failed": 1},
    ],
    ids=["runs end", "long runs", "paused", "nothing waits", "runs fail"],
)
def test_conditions_that_are_not_a_stall(calm: dict[str, Any]) -> None:
    assert Queue(Rules(burst_runs=1000)).during(120, **{"waits_since": BEGIN, **calm}) == []


def test_a_queue_may_have_its_own_settings(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.toml"
    path.write_text(
        "[incidents]\nburst_runs = 30\n"
        "[incidents.queues.slow]\nstall_seconds = 300\nquiet_seconds = 0.5\n"
    )
    rules = load(path).incidents
    assert rules.of("payouts") is rules and rules.stall_seconds == 10
    slow = rules.of("slow")
    assert (slow.stall_seconds, slow.quiet_seconds, slow.burst_runs, slow.queues) == (
        300,
        0.5,
        30,
        {},
    )
    queue = Queue(slow)
    assert queue.waiting(290, since=BEGIN) == []
    assert queue.waiting(20, since=BEGIN) == [("stall", "*", False)]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("stall = 3", "queue 'slow' cannot have stall of its own; it can have stall_seconds"),
        ("stall_seconds = -3", "queue 'slow': Expected `float` > 0"),
        ("flood_tasks = 1.5", "queue 'slow': Expected `int`"),
    ],
)
def test_settings_that_a_queue_cannot_override_are_named(
    tmp_path: Path, given: str, expected: str
) -> None:
    path = tmp_path / "pipeline.toml"
    path.write_text(f"[incidents.queues.slow]\n{given}\n")
    with pytest.raises(ConfigurationError, match=expected):
        load(path)


def test_long_runs_that_hold_all_slots_are_a_stall_after_some_minutes() -> None:
    queue = Queue()
    assert queue.waiting(298, BEGIN, running=4, claimed_at=BEGIN) == []
    assert queue.waiting(2, BEGIN, running=4, claimed_at=BEGIN) == [("stall", "*", False)]
    assert queue.waiting(2, BEGIN, running=4, done=1) == [("stall", "*", True)]


def test_a_key_with_ten_times_its_usual_tasks_and_most_tasks_of_the_queue_is_a_flood() -> None:
    queue = Queue()
    assert queue.during(600, keys={"a": 2, "b": 2}) == []
    began = queue.at
    assert queue.during(60, keys={"a": 60, "b": 2}) == [("flood", "a", False)]
    # 600 tasks at 30 a second, plus those before
    assert queue.start("flood", "a") - began <= 26 * MICROS
    assert queue.during(420, keys={"a": 2, "b": 2}) == [("flood", "a", True)]


@pytest.mark.parametrize(
    "brought",
    [{"a": 4}, {"a": 12}, {"a": 60, "b": 90}],
    ids=["the usual", "three times the usual", "less than half of all"],
)
def test_conditions_that_are_not_a_flood(brought: dict[str, int]) -> None:
    queue = Queue()
    queue.during(600, keys={"a": 4, "b": 90})
    assert queue.during(300, keys={"b": 90} | brought) == []


def test_a_queue_without_known_usual_numbers_has_no_flood() -> None:
    queue = Queue(Rules(warm_up_seconds=120))
    assert queue.during(118, keys={"a": 50}) == []


@pytest.mark.parametrize("second", [0, 1, 30, 54, 59])
def test_the_rest_of_the_first_minute_is_no_usual_minute(second: int) -> None:
    queue = Queue(Rules(), at=BEGIN + second * MICROS)
    assert queue.during(600, keys={"a": 4}) == []


def test_bursts_of_errors_a_few_minutes_apart_are_one_anomaly() -> None:
    queue = Queue()
    queue.during(60, done=10)
    assert queue.during(60, failed=10, done=1) == [("error burst", "*", False)]
    assert queue.during(120, done=10) == []
    assert queue.during(60, failed=10) == []
    assert queue.during(420, done=10) == [("error burst", "*", True)]


def test_a_burst_is_detected_within_seconds_after_a_long_time_without_errors() -> None:
    queue = Queue()
    queue.during(600, done=10)
    began = queue.at
    assert queue.during(20, failed=10) == [("error burst", "*", False)]
    assert began - 10 * MICROS <= queue.start("error burst") <= began + 10 * MICROS


@pytest.mark.parametrize(
    "runs", [{"failed": 4, "done": 5}, {"failed": 0, "done": 50}], ids=["less than half", "none"]
)
def test_conditions_that_are_not_a_burst(runs: dict[str, int]) -> None:
    assert Queue().during(300, **runs) == []


def test_few_errors_are_no_burst_although_no_run_succeeds() -> None:
    assert Queue().during(18, failed=2) == []


def test_lost_nodes_and_starved_keys_are_anomalies_until_minutes_after_the_last_sign() -> None:
    queue = Queue()
    assert queue.during(2, silent=["n1"]) == [("node loss", "n1", False)]
    assert queue.during(2, lost={"n1": 3}) == []
    assert queue.during(300, done=1) == [("node loss", "n1", True)]
    assert queue.during(2, starved=["a"]) == [("starved", "a", False)]
    assert queue.during(300) == [("starved", "a", True)]


def test_the_time_without_observations_is_not_known() -> None:
    queue = Queue(Rules())
    queue.during(400, done=4, keys={"a": 4})
    began = queue.at
    queue.at += 1200 * MICROS  # the arrivals of all these minutes are reported at once
    assert queue.waiting(2, began, keys={"a": 2400}) == []
    assert queue.during(2, done=4, keys={"a": 4}) == []
    began = queue.at
    assert queue.waiting(8, began) == []
    assert queue.waiting(2, began) == [("stall", "*", False)]


@given(
    steps=st.lists(st.integers(-7200, 7200), min_size=70, max_size=150),
    stalled=st.lists(st.integers(-7200, 7200), min_size=6, max_size=6),
)
def test_no_clock_that_is_set_hides_a_stall_or_invents_an_anomaly(
    steps: list[int], stalled: list[int]
) -> None:
    queue = Queue(Rules())
    for seconds in steps:
        queue.skew = seconds * MICROS
        assert queue.during(2, done=4, keys={"a": 4}, running=1) == []
    began, changes = queue.at + queue.skew, []
    for seconds in stalled:
        queue.skew = seconds * MICROS
        begun = queue.waiting(2, began)
        assert not begun or queue.start("stall") <= queue.at + queue.skew
        changes += begun
    assert changes == [("stall", "*", False)]
    assert queue.during(2, done=1, running=1) == [("stall", "*", True)]


OBSERVATIONS = st.lists(
    st.fixed_dictionaries(
        {
            "waits_since": st.none() | st.integers(BEGIN - MINUTE, BEGIN + 60 * MINUTE),
            "running": st.integers(0, 3),
            "claimed_at": st.integers(0, BEGIN + 60 * MINUTE),
            "done": st.integers(0, 40),
            "failed": st.integers(0, 40),
            "arrived": st.integers(0, 2000),
            "keys": st.dictionaries(st.sampled_from("abc"), st.integers(1, 1000)),
            "lost": st.dictionaries(st.sampled_from("nm"), st.integers(1, 3)),
            "silent": st.lists(st.sampled_from("nm"), max_size=2),
        }
    ),
    max_size=60,
)


@given(OBSERVATIONS, st.integers(1, 200))
def test_each_anomaly_begins_and_ends_and_the_state_stays_small(
    observations: list[dict[str, Any]], seconds: int
) -> None:
    queue = Queue()
    is_open: set[tuple[str, str]] = set()
    for what in observations:
        queue.at += seconds * MICROS
        for kind, subject, is_over in queue.observe(**what):
            assert ((kind, subject) in is_open) == is_over
            (is_open.remove if is_over else is_open.add)((kind, subject))
        assert queue.detector.open.keys() == is_open
        assert all(each.start <= queue.at for each in queue.detector.open.values())
    assert len(queue.detector._minute) <= 7
