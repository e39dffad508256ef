"""Alerts from heartbeats of a queue: when they are raised, kept and ended, by hand-made cases and by
properties."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import ConfigurationError
from fairlead.clock import MICROS
from fairlead.pipeline.incidents.heartbeat import Heartbeat
from fairlead.pipeline.incidents.watch import (
    MEAN_MINUTES,
    MINUTE,
    Alert,
    KeyMinutes,
    Rules,
    Watched,
    observe,
)
from fairlead.pipeline.settings import load

BEGIN = 1_790_000_000 * MICROS - 1_790_000_000 * MICROS % MINUTE
RULES = Rules(warm_up_seconds=0)


@dataclass
class Queue:
    """A watched queue with a heartbeat every two seconds."""

    rules: Rules = RULES
    at: int = BEGIN
    keys: dict[str, KeyMinutes] = field(default_factory=dict)
    relay: str = "one"

    def __post_init__(self) -> None:
        self.watched = Watched(since=self.at, relay=self.relay)

    def heartbeat(self, **what: Any) -> Heartbeat:
        self.at += 2 * MICROS
        what.setdefault("arrived", sum(what.get("keys", {}).values()))
        return Heartbeat("store", "payouts", self.relay, self.at, **what)

    def feed(self, *heartbeats: Heartbeat) -> list[Alert]:
        return observe(self.watched, heartbeats, self.keys, self.rules)

    def during(self, seconds: float, **what: Any) -> list[Alert]:
        return [
            alert for _ in range(round(seconds / 2)) for alert in self.feed(self.heartbeat(**what))
        ]

    def waiting(self, seconds: float, since: int, **what: Any) -> list[Alert]:
        return self.during(seconds, waits_since=since, **{"running": 0, **what})


def kinds(alerts: list[Alert]) -> list[tuple[str, str, bool]]:
    return [(alert.kind, alert.subject, alert.is_over) for alert in alerts]


def test_a_queue_from_which_no_node_takes_tasks_stalls_until_one_does() -> None:
    queue = Queue()
    queue.during(20, done=5, keys={"a": 5})
    began = queue.at
    assert queue.waiting(8, began) == []
    (stall,) = queue.waiting(4, began)
    assert (stall.kind, stall.start, stall.at) == ("stall", began, began + 10 * MICROS)
    assert queue.waiting(60, began) == []
    (over,) = queue.waiting(2, began, running=1, claimed_at=queue.at + MICROS)
    assert over.is_over and over.start == stall.start


@pytest.mark.parametrize(
    "calm",
    [
        {"running": 0, "done": 1},
        {"running": 3, "claimed_at": BEGIN},
        {"running": None},
        {"running": 0, "is_paused": True},
        {"running": 0, "waits_since": None},
        {"running": 0, "failed": 1},
    ],
    ids=["runs end", "long runs", "nothing counted", "paused", "nothing waits", "runs fail"],
)
def test_conditions_that_are_not_a_stall(calm: dict[str, Any]) -> None:
    assert Queue(Rules(burst_runs=1000)).during(120, **{"waits_since": BEGIN, **calm}) == []


def test_a_queue_may_have_its_own_settings(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.toml"
    path.write_text(
        "[alerts]\nburst_runs = 30\n[alerts.queues.slow]\nstall_seconds = 300\nquiet_seconds = 0.5\n"
    )
    rules = load(path).alerts
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
    assert kinds(queue.waiting(20, since=BEGIN)) == [("stall", "*", False)]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            "forget_seconds = 3",
            "queue 'slow' cannot have forget_seconds of its own; it can have stall_seconds",
        ),
        ("stall = 3", "cannot have stall of its own"),
        ("stall_seconds = -3", "queue 'slow': Expected `float` > 0"),
        ("flood_tasks = 1.5", "queue 'slow': Expected `int`"),
    ],
)
def test_settings_that_a_queue_cannot_override_are_named(
    tmp_path: Path, given: str, expected: str
) -> None:
    path = tmp_path / "pipeline.toml"
    path.write_text(f"[alerts.queues.slow]\n{given}\n")
    with pytest.raises(ConfigurationError, match=expected):
        load(path)


def test_long_runs_that_hold_all_slots_are_a_stall_after_some_minutes() -> None:
    queue = Queue()
    alerts = queue.waiting(310, BEGIN, running=4, claimed_at=BEGIN)
    assert kinds(alerts) == [("stall", "*", False)]
    assert alerts[0].at == BEGIN + 300 * MICROS
    # The stall continues while no heartbeat comes, and ends with the end of a run.
    assert queue.waiting(10, BEGIN, running=None) == []
    assert kinds(queue.waiting(2, BEGIN, running=None, done=1)) == [("stall", "*", True)]


def test_a_key_with_ten_times_its_usual_tasks_and_most_tasks_of_the_queue_is_a_flood() -> None:
    queue = Queue()
    assert queue.during(600, keys={"a": 2, "b": 2}) == []
    alerts = queue.during(60, keys={"a": 60, "b": 2})
    assert kinds(alerts) == [("flood", "a", False)]
    assert (
        alerts[0].at - (queue.at - 60 * MICROS) <= 26 * MICROS
    )  # 600 tasks at 30 a second, plus those before
    over = queue.during(420, keys={"a": 2, "b": 2})
    assert kinds(over) == [("flood", "a", True)]
    assert over[0].tasks > 1000


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


def test_bursts_of_errors_a_few_minutes_apart_are_one_alert() -> None:
    queue = Queue()
    queue.during(60, done=10)
    alerts = queue.during(60, failed=10, done=1)
    assert kinds(alerts) == [("error burst", "*", False)]
    assert queue.during(120, done=10) == []
    assert queue.during(60, failed=10) == []
    over = queue.during(420, done=10)
    assert kinds(over) == [("error burst", "*", True)]
    assert over[0].start == alerts[0].start


def test_a_burst_is_detected_within_seconds_after_a_long_time_without_errors() -> None:
    queue = Queue()
    queue.during(600, done=10)
    began = queue.at
    assert kinds(queue.during(20, failed=10)) == [("error burst", "*", False)]
    assert began - 10 * MICROS <= queue.watched.open["error burst\t*"].start <= began + 10 * MICROS


@pytest.mark.parametrize(
    "runs", [{"failed": 4, "done": 5}, {"failed": 0, "done": 50}], ids=["less than half", "none"]
)
def test_conditions_that_are_not_a_burst(runs: dict[str, int]) -> None:
    assert Queue().during(300, **runs) == []


def test_few_errors_are_no_burst_although_no_run_succeeds() -> None:
    queue = Queue()
    assert [alert for _ in range(9) for alert in queue.feed(queue.heartbeat(failed=2))] == []


def test_stuck_tasks_and_lost_nodes_raise_alerts() -> None:
    queue = Queue()
    assert kinds(queue.during(4, stuck=2, running=2)) == [("stuck", "*", False)]
    assert queue.during(10, stuck=None) == []  # stuck tasks were not counted
    assert kinds(queue.during(2, stuck=0, running=0)) == [("stuck", "*", True)]
    assert kinds(queue.feed(queue.heartbeat(silent=["n1"]))) == [("node loss", "n1", False)]
    assert queue.feed(queue.heartbeat(lost={"n1": 3})) == []
    over = queue.during(302, done=1)
    assert kinds(over) == [("node loss", "n1", True)]
    assert over[0].tasks == 3


@dataclass
class Relays:
    """Relays of one queue, whose clocks are wrong and are set; time passes by `tick`."""

    queue: Queue
    true: int = BEGIN
    relay: str = "one"
    skew: int = 0
    began: int = BEGIN

    def tick(self, event: tuple[str, int], **what: Any) -> list[Alert]:
        name, seconds = event
        self.true += 2 * MICROS
        if name == "set":
            self.skew = seconds * MICROS
        elif name == "replace":
            self.relay, self.skew, self.began = f"relay {self.true}", seconds * MICROS, self.true
        elif name == "away":
            self.true += abs(seconds) * MICROS
        what.setdefault("arrived", sum(what.get("keys", {}).values()))
        up = self.true - self.began + 1
        sent = Heartbeat("store", "payouts", self.relay, self.true + self.skew, up=up, **what)
        return self.queue.feed(*[sent] * (2 if name == "repeat" else 1))


_CALM = st.just(("", 0))
_CLOCK = st.tuples(st.sampled_from(["set", "repeat", "", "", ""]), st.integers(-7200, 7200))
_EVENT = st.tuples(
    st.sampled_from(["set", "replace", "away", "repeat", ""]), st.integers(-7200, 7200)
)


@given(
    calm=st.lists(_CALM | _EVENT, min_size=70, max_size=150),
    stalled=st.lists(_CLOCK, min_size=12, max_size=12),
    replaced=st.none() | st.tuples(st.integers(0, 11), st.integers(-7200, 7200)),
)
def test_no_clock_of_a_relay_hides_a_stall_or_invents_an_alert(
    calm: list[tuple[str, int]],
    stalled: list[tuple[str, int]],
    replaced: tuple[int, int] | None,
) -> None:
    """A relay whose clock had stepped back sent 1,700 heartbeats of a stalled queue, and no alert was
    raised."""
    relays = Relays(Queue(Rules(queues={"payouts": {"stall_seconds": 10.0}})))
    for event in [("", 0), *calm]:
        assert relays.tick(event, done=4, keys={"a": 4}, running=1) == []
    assert relays.tick(("", 0), running=1, claimed_at=relays.true + MICROS) == []
    began, found = relays.true, []
    stalled = [*stalled, ("", 0)]
    if replaced is not None:
        stalled.insert(replaced[0], ("replace", replaced[1]))
        stalled += [("", 0)] * 6
    for event in stalled:
        found += relays.tick(event, waits_since=began, running=0)
    assert [(alert.kind, alert.is_over) for alert in found] == [("stall", False)]
    (over,) = [alert for _ in range(7) for alert in relays.tick(("", 0), done=1, running=1)]
    assert over.is_over and over.at >= over.start


@pytest.mark.parametrize("second", [0, 1, 30, 54, 59])
def test_the_rest_of_the_first_minute_is_no_usual_minute(second: int) -> None:
    queue = Queue(Rules(), at=BEGIN + second * MICROS)
    queue.watched.since += 2 * MICROS  # the first heartbeat
    assert queue.during(600, keys={"a": 4}) == []


def test_the_time_without_heartbeats_is_not_known() -> None:
    relays = Relays(Queue(Rules()))
    for _ in range(200):
        relays.tick(("", 0), done=4, keys={"a": 4})
    began = relays.true
    # The relay was away for twenty minutes, and reports the arrivals of all of them at once.
    assert relays.tick(("away", 1200), waits_since=began, running=0, keys={"a": 2400}) == []
    assert relays.tick(("", 0), done=4, keys={"a": 4}) == []


def test_instants_before_an_unknown_time_are_by_the_clock_of_then() -> None:
    relays = Relays(Queue(Rules()))
    for _ in range(200):
        relays.tick(("", 0), done=4, keys={"a": 4}, running=1)
    (flood,) = relays.tick(("", 0), done=4, keys={"b": 500}, running=1)
    flooded, found = relays.true, []
    relays.tick(("", 0), done=4, running=1)
    began = relays.true
    for away in (3600, 600, 0, 0, 0, 0):
        found += relays.tick(("away", away), waits_since=began, running=0)
    (stall,) = found
    assert (flood.at, stall.start) == (flooded, began)
    assert stall.start < stall.at <= relays.true
    over = [alert for _ in range(160) for alert in relays.tick(("", 0), done=4, running=1)]
    assert [(alert.kind, alert.subject, alert.is_over) for alert in over] == [
        ("stall", "*", True),
        ("flood", "b", True),
    ]
    assert stall.at < over[0].at < relays.true and over[1].at == flooded


def test_an_alert_ends_after_its_detection_although_the_clock_was_set_back() -> None:
    """The end was sorted before the begin, and the incident stayed open."""
    relays = Relays(Queue(Rules()))
    relays.tick(("", 0), done=4, running=1)
    began, found = relays.true, []
    for _ in range(6):
        found += relays.tick(("", 0), waits_since=began, running=0)
    found += relays.tick(("set", -7200), done=1, running=1)
    assert kinds(found) == [("stall", "*", False), ("stall", "*", True)]
    assert found[0].start <= found[0].at <= found[1].at


def test_events_that_are_repeated_change_nothing() -> None:
    first, again = Queue(), Queue()
    heartbeats = [first.heartbeat(keys={"a": 30}, failed=9) for _ in range(60)]
    once = first.feed(*heartbeats)
    twice = (
        again.feed(*heartbeats[20:40:-1], *heartbeats[:30])
        + again.feed(*heartbeats)
        + again.feed(*heartbeats)
    )
    assert once == twice != []
    assert first.watched == again.watched and first.keys == again.keys


def test_heartbeats_of_one_of_two_relays_count_until_it_is_silent() -> None:
    queue = Queue()
    queue.during(30, done=1)
    other = Queue(at=queue.at, relay="two")
    assert queue.feed(*(other.heartbeat(failed=30) for _ in range(5))) == []
    assert kinds(queue.feed(other.heartbeat(failed=30))) == [("error burst", "*", False)]


HEARTBEATS = st.lists(
    st.builds(
        Heartbeat,
        st.just("store"),
        st.just("payouts"),
        st.sampled_from(["one", "two"]),
        st.integers(0, 4000).map(lambda seconds: BEGIN + seconds * MICROS),
        waits_since=st.none() | st.integers(BEGIN - MINUTE, BEGIN + 60 * MINUTE),
        running=st.none() | st.integers(0, 3),
        claimed_at=st.integers(0, BEGIN + 60 * MINUTE),
        stuck=st.none() | st.integers(0, 2),
        done=st.integers(0, 40),
        failed=st.integers(0, 40),
        arrived=st.integers(0, 2000),
        keys=st.dictionaries(st.sampled_from("abc"), st.integers(1, 1000)),
        lost=st.dictionaries(st.sampled_from("nm"), st.integers(1, 3)),
        silent=st.lists(st.sampled_from("nm"), max_size=2),
    ),
    max_size=60,
)


@given(HEARTBEATS)
def test_each_alert_starts_and_ends_and_the_state_stays_small(
    heartbeats: list[Heartbeat],
) -> None:
    queue = Queue()
    alerts = queue.feed(*heartbeats)
    is_open: dict[tuple[str, str], int] = {}
    for alert in alerts:
        name = (alert.kind, alert.subject)
        assert (name in is_open) == alert.is_over
        if alert.is_over:
            assert is_open.pop(name) == alert.start
            assert alert.at >= alert.start
        else:
            is_open[name] = alert.start
            assert alert.start <= alert.at
    assert {tuple(name.split("\t")) for name in queue.watched.open} == is_open.keys()
    assert len(queue.watched.intervals) <= 7


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 500)), min_size=1, max_size=40))
def test_the_usual_minute_of_a_key_lies_between_its_least_and_its_greatest(
    brought: list[tuple[int, int]],
) -> None:
    known = KeyMinutes(0)
    minute = 0
    for gap, tasks in brought:
        minute += gap
        known.arrive(tasks, minute)
    most = 40 * max(tasks for _, tasks in brought)
    assert 0 <= known.mean <= most
    assert known.known <= MEAN_MINUTES
    assert known.last_minute(minute * MINUTE) <= known.tasks + known.before
