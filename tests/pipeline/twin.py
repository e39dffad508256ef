"""Twins of the models: functions that compute each table of a build in plain Python, from rows of its
sources and by the words of the dictionary, to judge the SQL."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from itertools import groupby
from math import ceil, floor, log
from operator import itemgetter
from typing import Any
from zlib import crc32

import pytest

from fairlead.clock import to_datetime, to_micros
from tests.pipeline.model_frames import Bill, Objective

Row = dict[str, Any]
Rows = Iterable[Mapping[str, Any]]
S, MINUTE, HOUR, DAY = 1_000_000, 60_000_000, 3_600_000_000, 86_400_000_000
FAILED = ("failed", "retried", "timed_out", "lost")
MEASURES = ("pickup", "run", "e2e", "retry_delay")
PERCENTILES = {"p50": 500, "p90": 900, "p99": 990, "p999": 999}
"""Ranks in thousandths."""


def us(instant: datetime | None, length: int = 1) -> int:
    """Return an instant in microseconds, rounded down to this length."""
    assert instant is not None
    return to_micros(instant) // length * length


def grouped(rows: Rows, *names: str | Callable[[Any], Any]) -> Iterator[tuple[Any, list[Any]]]:
    """Yield the rows by the values of these columns or functions, in ascending order."""
    by = [itemgetter(name) if isinstance(name, str) else name for name in names]

    def key(row: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(each(row) for each in by)

    return ((at, list(inside)) for at, inside in groupby(sorted(rows, key=key), key))


def total(rows: Rows, name: str) -> Any:
    return sum(row[name] for row in rows)


def over(one: float, other: float) -> float | None:
    return one / other if other else None


def jain(shares: Sequence[float]) -> float:
    """Return Jain's index of at least one share, all of them 0 or greater."""
    return (
        sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares))
        if any(shares)
        else 1.0
    )


# silver -------------------------------------------------------------------------------------------


def service(attempts: Rows) -> Iterator[Row]:
    pieces = []
    for row in attempts:
        if row["started_at"] is not None:
            start, end = us(row["started_at"]), us(row["finished_at"])
            for minute in range(us(row["started_at"], MINUTE), end + 1, MINUTE):
                busy = min(end, minute + MINUTE) - max(start, minute)
                ends = row["outcome"] if end < minute + MINUTE else ""
                pieces.append(
                    dict(row)
                    | {"minute": minute, "busy": busy, "ends": ends, "long": end - start}
                    | {"starts": start >= minute, "by_weight": busy / row["weight"]}
                )
    for (minute, queue, key, name), inside in grouped(
        pieces, "minute", "queue", "fairness_key", "name"
    ):
        good = [row for row in inside if row["outcome"] in ("done", "snoozed")]
        yield {
            "window_start": to_datetime(minute),
            "window_s": 60,
            "queue": queue,
            "fairness_key": key,
            "name": name,
            "weight": max(row["weight"] for row in inside),
            "busy_us": total(inside, "busy"),
            "weighted_us": pytest.approx(total(inside, "by_weight"), abs=0.01),
            "attempts_started": total(inside, "starts"),
            "attempts_done": sum(row["ends"] == "done" for row in inside),
            "failed": sum(row["ends"] in FAILED for row in inside),
            "wasted_us": total(inside, "busy") - total(good, "busy"),
            "longest_run_us": max(row["long"] if row["busy"] else 0 for row in inside),
        }


def tasks(attempts: Rows, events: Rows) -> Iterator[Row]:
    known = [
        dict(event)
        | dict.fromkeys(("ready_at", "claimed_at", "started_at", "finished_at", "ordering_key"))
        | {"version": -1, "submitted_at": event["at"], "outcome": ""}
        | {"next_state": "WAITING" if event["run_at"] > event["at"] else "SUBMITTED"}
        | {"due_at": max(event["at"], event["run_at"])}
        for event in events
        if event["kind"] == "submitted"
    ]
    known += [dict(row) | {"due_at": None} for row in attempts]
    for (store_id, task_id), history in grouped(known, "store_id", "task_id"):
        latest = max(history, key=itemgetter("version"))

        def first(name: str, history: Sequence[Row] = history) -> Any:
            return min((row[name] for row in history if row[name]), default=None)

        # The row of a person who gives a task up repeats the times of the run before.
        own = [row for row in history if row["started_at"] or row["outcome"] != "failed"]
        queue_us = sum(between(row, "ready_at", "claimed_at") or 0 for row in own)
        run_us = sum(between(row, "started_at", "finished_at") or 0 for row in history)
        runs = sum(bool(row["started_at"]) or row["outcome"] == "lost" for row in history)
        ended = max((row["finished_at"] for row in history if row["finished_at"]), default=None)
        is_over = latest["next_state"] in ("DONE", "FAILED", "CANCELLED", "ERROR")
        times = {
            "ready": first("ready_at") or latest["due_at"],
            "claimed": first("claimed_at"),
            "submitted": latest["submitted_at"],
            "ended": ended if is_over else None,
        }
        same = ("queue", "name", "fairness_key", "weight", "priority", "ordering_key")
        yield {name: latest[name] for name in same} | {
            "store_id": store_id,
            "task_id": task_id,
            "submitted_at": latest["submitted_at"],
            "first_ready_at": times["ready"],
            "first_claimed_at": times["claimed"],
            "first_started_at": first("started_at"),
            "last_finished_at": ended,
            "attempts": runs,
            "retries": max(runs - 1, 0),
            "state": latest["next_state"],
            "wait_us": between(times, "ready", "claimed"),
            "queue_us": queue_us,
            "run_us": run_us,
            "e2e_us": between(times, "submitted", "ended"),
            "slowdown": max(1.0, (queue_us + run_us) / max(run_us, 10 * S)),
        }


def between(row: Mapping[str, Any], begin: str, end: str) -> int | None:
    """Return the microseconds between two instants: 0 where clocks disagree, None without both."""
    if row[begin] is None or row[end] is None:
        return None
    return max(0, us(row[end]) - us(row[begin]))


def open_tasks(made: Rows) -> Iterator[Row]:
    for task in made:
        if task["last_finished_at"] is None:
            same = ("store_id", "task_id", "queue", "fairness_key", "weight", "submitted_at")
            yield {name: task[name] for name in same} | {"ready_at": task["first_ready_at"]}


def backlog(attempts: Rows, waiting: Rows, hours: Collection[int], known: int) -> Iterator[Row]:
    """Count the waiting tasks in every second of these hours; history is known up to `known`."""
    stays = [stay for row in attempts if (stay := stay_of(row)) is not None]
    for row in waiting:
        ready = us(row["ready_at"])
        still = {"left": max(ready, known), "start": ready, "finish": ready, "is_claimed": False}
        stays.append(dict(row) | still | {"ready": ready, "run_us": 0})
    for (queue, key), those in grouped(stays, "queue", "fairness_key"):
        for hour in hours:
            for minute in range(hour, hour + HOUR, MINUTE):
                if row := of_minute(those, minute):
                    at = {"minute": to_datetime(minute), "queue": queue, "fairness_key": key}
                    yield at | row


def stay_of(row: Mapping[str, Any]) -> Row | None:
    """Return when an attempt waited and ran, or None if it never became ready or is an end by a
    person."""
    by_hand = row["started_at"] is None and row["outcome"] in ("cancelled", "failed")
    if row["ready_at"] is None or (by_hand and row["outcome"] == "failed"):
        return None
    finished = us(row["finished_at"])
    ready = min(us(row["ready_at"]), finished)
    is_claimed = row["claimed_at"] is not None and not (
        by_hand and row["claimed_at"] < row["ready_at"]
    )
    started = None if row["started_at"] is None else us(row["started_at"])
    if started is None:
        runs = {"start": ready, "finish": ready, "run_us": 0}
    else:
        runs = {"start": max(ready, started), "finish": finished, "run_us": finished - started}
    return (
        dict(row)
        | runs
        | {
            "ready": ready,
            "left": max(ready, min(finished, us(row["claimed_at"]))) if is_claimed else finished,
            "is_claimed": is_claimed,
        }
    )


def of_minute(stays: Sequence[Row], minute: int) -> Row | None:
    def waiting_at(second: int) -> list[Row]:
        return [stay for stay in stays if stay["ready"] // S <= second < stay["left"] // S]

    end, hour = minute + MINUTE, minute // HOUR * HOUR
    before = [stay for stay in stays if stay["ready"] < minute]
    work = sum(max(0, stay["finish"] - max(stay["start"], minute)) for stay in before)
    arrived = [stay for stay in stays if minute <= stay["ready"] < end]
    if not (arrived or work or any(stay["left"] >= minute for stay in before)):
        return None
    claimed = [stay for stay in stays if stay["is_claimed"] and minute <= stay["left"] < end]
    depths = [len(waiting_at(second)) for second in range(minute // S - 1, end // S)]
    if not (arrived or work or claimed or any(depths[1:])):
        return None
    touching = [
        stay
        for stay in stays
        if stay["ready"] < hour + HOUR and max(stay["left"], stay["finish"]) >= hour
    ]
    at_end = waiting_at(end // S - 1)
    return {
        "weight": max(stay["weight"] for stay in touching),
        "arrived": len(arrived),
        "arrived_us": total(arrived, "run_us"),
        "claimed": len(claimed),
        "strides": pytest.approx(sum(1 / stay["weight"] for stay in claimed), abs=1e-8),
        "depth_end": depths[-1],
        "depth_min": min(depths),
        "backlogged_us": sum(S for depth in depths[1:] if depth),
        "work_us": work,
        "oldest_ready_at": to_datetime(min(stay["ready"] for stay in at_end)) if at_end else None,
    }


# gold: runs ---------------------------------------------------------------------------------------


def is_run(row: Mapping[str, Any]) -> bool:
    return row["started_at"] is not None or row["outcome"] == "lost"


def has_failed(row: Mapping[str, Any]) -> bool:
    return is_run(row) and row["outcome"] in FAILED


def lengths(row: Mapping[str, Any]) -> dict[str, int | None]:
    """Return the microseconds of an attempt by measure."""
    is_done, is_retry = row["next_state"] == "DONE", row["attempt"] > 1
    return {
        "pickup": between(row, "ready_at", "started_at"),
        "run": between(row, "started_at", "finished_at"),
        "e2e": between(row, "submitted_at", "finished_at") if is_done else None,
        "retry_delay": between(row, "run_at", "started_at") if is_retry else None,
    }


def hour_of(row: Mapping[str, Any]) -> datetime:
    return to_datetime(us(row["finished_at"], HOUR))


def failures(attempts: Rows) -> Iterator[Row]:
    runs = [row for row in attempts if is_run(row)]
    for (hour, queue, name), inside in grouped(runs, hour_of, "queue", "name"):
        failed = [
            {"error": row["error_fp"] or crc32(row["outcome"].encode()), **row}
            for row in inside
            if has_failed(row)
        ]
        all_tasks = {(row["store_id"], row["task_id"]) for row in inside}
        for (error,), errors in grouped(failed, "error"):
            earliest = min(errors, key=_first_error)
            last = max(row["finished_at"] for row in errors)
            good = [row["finished_at"] for row in inside if row["outcome"] == "done"]
            yield {
                "hour": hour,
                "queue": queue,
                "name": name,
                "error_fp": error,
                "n": len(errors),
                "tasks": len({(row["store_id"], row["task_id"]) for row in errors}),
                "retry_amplification": len(inside) / len(all_tasks),
                "wasted_us": sum(lengths(row)["run"] or 0 for row in errors),
                "error_type": earliest["error_type"] or earliest["outcome"],
                "error_text": earliest["error_text"],
                "first_seen": earliest["finished_at"],
                "last_seen": last,
                "recovered_at": min((end for end in good if end > last), default=None),
                "storm": len(errors) >= 100 and 2 * len(errors) > len(inside),
            }


def _first_error(row: Row) -> tuple[Any, ...]:
    kind, text = row["error_type"] or row["outcome"], row["error_text"] or ""
    return row["finished_at"], row["task_id"], kind, text


def measured(attempts: Rows) -> Iterator[Row]:
    """Yield a row for each measure that an attempt has."""
    for row in attempts:
        for measure, length in lengths(row).items():
            if length is not None:
                bucket = ceil(log(max(length, 1)) / log(1.02))
                yield {"measure": measure, "us": length, "bucket": bucket, **row}


def latency_hist(attempts: Rows) -> Iterator[Row]:
    by = (hour_of, "queue", "name", "measure", "bucket")
    for (hour, queue, name, measure, bucket), inside in grouped(measured(attempts), *by):
        yield {
            "hour": hour,
            "queue": queue,
            "name": name,
            "fairness_key": "*",
            "measure": measure,
            "bucket": bucket,
            "n": len(inside),
            "max_us": max(row["us"] for row in inside),
        }


def latency(attempts: Rows, least: int) -> Iterator[Row]:
    """Percentiles of all keys together are those of merged buckets, and those of a key exact."""
    runs = list(measured(attempts))
    together = [row | {"fairness_key": "*"} for row in runs]
    for rows, is_all in ((together, True), (runs, False)):
        rows = [row for row in rows if is_all or row["fairness_key"] != "*"]
        for length in (HOUR, DAY):

            def start(row: Mapping[str, Any], length: int = length) -> int:
                return us(row["finished_at"], length)

            by = (start, "queue", "name", "fairness_key", "measure")
            for (begin, queue, name, key, measure), inside in grouped(rows, *by):
                if not is_all and length == HOUR and len(inside) < least:
                    continue
                yield {
                    "window_start": to_datetime(begin),
                    "window_s": length // S,
                    "queue": queue,
                    "name": name,
                    "fairness_key": key,
                    "measure": measure,
                    "n": len(inside),
                    "max_us": max(row["us"] for row in inside),
                    "error_bound": 0.01 if is_all else 0.0,
                } | {p: percentile(inside, rank, is_all) for p, rank in PERCENTILES.items()}


def percentile(rows: Sequence[Row], per_mille: int, of_buckets: bool) -> float:
    """Return the value with this rank, or the least value of the buckets that reach it."""
    rank = -(-len(rows) * per_mille // 1000)
    if not of_buckets:
        return float(sorted(row["us"] for row in rows)[rank - 1])
    up_to, reached = 0, []
    for (bucket,), inside in grouped(rows, "bucket"):
        up_to += len(inside)
        if up_to >= rank:
            reached.append(min(2 / 2.02 * 1.02**bucket, max(row["us"] for row in inside)))
    return float(min(reached))


def slo_counts(attempts: Rows, objectives: Sequence[Objective]) -> Iterator[Row]:
    for promise in objectives:
        runs = [
            row
            for row in attempts
            if is_run(row)
            and row["queue"] == promise.queue
            and promise.name in ("*", row["name"])
            and (promise.measure != "e2e" or row["next_state"] in ("DONE", "ERROR"))
        ]
        for (start,), inside in grouped(runs, lambda row: us(row["finished_at"], 5 * MINUTE)):
            of = [(has_failed(row), lengths(row)[promise.measure] or 0) for row in inside]
            bad = sum(failed or length > promise.threshold_us for failed, length in of)
            at = {"window_start": to_datetime(start), "slo_id": promise.slo_id}
            yield at | {"good": len(of) - bad, "bad": bad}


SPANS = {"burn_5m": 300, "burn_30m": 1800, "burn_1h": 3600, "burn_6h": 21_600, "burn_3d": 259_200}


def slo(counts: Rows, objectives: Sequence[Objective]) -> Iterator[Row]:
    counts = list(counts)
    allowed = {promise.slo_id: 1 - promise.objective for promise in objectives}
    for row in counts:
        burn = {}
        for name, seconds in SPANS.items():
            end = us(row["window_start"])
            span = [
                each
                for each in counts
                if each["slo_id"] == row["slo_id"]
                and end - seconds * S < us(each["window_start"]) <= end
            ]
            runs = total(span, "good") + total(span, "bad")
            burn[name] = total(span, "bad") / runs / allowed[row["slo_id"]]
        fast = burn["burn_1h"] > 14.4 and burn["burn_5m"] > 14.4
        slow = burn["burn_6h"] > 6 and burn["burn_30m"] > 6
        ticket = burn["burn_3d"] > 1 and burn["burn_6h"] > 1
        yield (
            dict(row)
            | burn
            | {
                "objective": 1 - allowed[row["slo_id"]],
                "budget_left": 1 - burn["burn_3d"],
                "state": "page" if fast or slow else "ticket" if ticket else "ok",
            }
        )


# gold: shares and costs ---------------------------------------------------------------------------

_SUMS = (
    "busy_us",
    "weighted_us",
    "work_us",
    "arrived_us",
    "backlogged_us",
    "claimed",
    "strides",
    "depth_min",
    "is_full",
)


def tenant_share(served: Rows, waited: Rows, pickups: Mapping[tuple[int, str], int]) -> list[Row]:
    """pickups: median pickup time by day and queue, in microseconds."""
    nothing = dict.fromkeys((*_SUMS, "longest_run_us"), 0)
    rows = [nothing | dict(row) | {"minute": row["window_start"]} for row in served]
    rows += [
        nothing | dict(row) | {"is_full": row["depth_min"] > 0 or row["backlogged_us"] >= MINUTE}
        for row in waited
    ]
    made = []
    for (day, queue, key), of_day in grouped(
        rows, lambda row: us(row["minute"], DAY), "queue", "fairness_key"
    ):
        minutes = []
        for (minute,), inside in grouped(of_day, lambda row: us(row["minute"])):
            sums = {name: total(inside, name) for name in _SUMS}
            waits = 0
            if sums["depth_min"] > 0 and not sums["claimed"]:
                follows = minutes and minutes[-1]["minute"] == minute - MINUTE
                waits = MINUTE + (minutes[-1]["waits"] if follows else 0)
            least = max(MINUTE, 10 * pickups.get((day, queue), 0))
            weight = max(row["weight"] for row in inside)
            sums |= {"minute": minute, "waits": waits, "starved": waits >= least}
            minutes.append(sums | {"weight": weight})
        longest = max(row["longest_run_us"] for row in of_day)
        for length in (MINUTE, HOUR, DAY):
            made += _windows(minutes, length, {"queue": queue, "fairness_key": key}, longest)
    for _, rivals in grouped(made, "window_s", "window_start", "queue"):
        used = total(rivals, "busy_us")
        due = water_filling([r["demand_us"] for r in rivals], [r["weight"] for r in rivals], used)
        for row, entitled in zip(rivals, due, strict=True):
            row["share"] = row["busy_us"] / used if used else 0.0
            row["entitled_us"] = pytest.approx(float(entitled), abs=1.5)
            row["deficit_us"] = pytest.approx(float(entitled) - row["busy_us"], abs=1.5)
            row["lag_us"] = float(entitled) - row["busy_us"]
    day_of = lambda row: us(row["window_start"], DAY)  # noqa: E731
    for _, along in grouped(made, "window_s", day_of, "queue", "fairness_key"):
        lag, end, had_backlog = 0.0, 0, False
        for row in sorted(along, key=itemgetter("window_start")):
            start, has_backlog = us(row["window_start"]), row["backlogged_fraction"] > 0
            goes_on = start == end and has_backlog and had_backlog
            lag = row["lag_us"] + (lag if goes_on else 0)
            row["lag_us"] = pytest.approx(lag if has_backlog else 0, abs=30)
            end, had_backlog = start + row["window_s"] * S, has_backlog
    return made


def _windows(minutes: Sequence[Row], length: int, of: Row, longest: int) -> Iterator[Row]:
    for (start,), inside in grouped(minutes, lambda row: row["minute"] // length * length):
        sums = {name: total(inside, name) for name in _SUMS}
        begun = [row["work_us"] for row in inside if row["minute"] == start]
        weight = over(sums["claimed"], sums["strides"])
        weight = weight or over(sums["busy_us"], sums["weighted_us"])
        yield of | {
            "window_start": to_datetime(start),
            "window_s": length // S,
            "busy_us": sums["busy_us"],
            "weighted_us": pytest.approx(sums["weighted_us"], rel=1e-9, abs=0.001),
            "weight": round(weight or max(row["weight"] for row in inside), 9),
            "demand_us": sums["arrived_us"] + sum(begun),
            "backlogged_fraction": sums["backlogged_us"] / length,
            "throughout": sums["is_full"] * MINUTE == length,
            "claimed": sums["claimed"],
            "longest_run_us": longest,
            "starved": any(row["starved"] for row in inside),
        }


def water_filling(demand: Sequence[int], weight: Sequence[float], capacity: int) -> list[Fraction]:
    """Return exact shares: fill all keys that fit at the present level, and repeat."""
    entitled = [Fraction(0)] * len(demand)
    left, thirsty = Fraction(min(capacity, sum(demand))), set(range(len(demand)))
    while thirsty:
        level = left / sum(Fraction(weight[i]) for i in thirsty)
        full = {i for i in thirsty if demand[i] <= level * Fraction(weight[i])}
        for i in full or thirsty:
            entitled[i] = Fraction(demand[i]) if full else level * Fraction(weight[i])
            left -= entitled[i]
        thirsty -= full or thirsty
    return entitled


def fairness(shares: Rows) -> Iterator[Row]:
    for (start, window_s, queue), rows in grouped(shares, "window_start", "window_s", "queue"):
        compared = [row for row in rows if row["throughout"]]
        got = [row["busy_us"] / row["entitled_us"] for row in compared if row["entitled_us"]]
        served = [row["busy_us"] / row["weight"] for row in compared]
        claims = [row["claimed"] / row["weight"] for row in compared]
        longest = sorted(row["longest_run_us"] / row["weight"] for row in compared)
        strides = sorted(1 / row["weight"] for row in compared)
        behind = max(rows, key=itemgetter("lag_us", "fairness_key"))
        noise = [
            (row["share"] / row["entitled_us"], row["fairness_key"])
            for row in rows
            if row["share"] >= 0.1 and row["entitled_us"]
        ]
        several = len(compared) >= 2
        gap, bound = (max(served) - min(served), sum(longest[-2:])) if several else (None, None)
        yield {
            "window_start": start,
            "window_s": window_s,
            "queue": queue,
            "jain": jain(got) if len(got) >= 2 else None,
            "n_keys": len(compared),
            "max_min_ratio": over(max(got), min(got)) if len(got) >= 2 else None,
            "max_lag_us": behind["lag_us"],
            "max_lag_key": behind["fairness_key"],
            "sfq_gap": gap,
            "sfq_bound": bound,
            "bound_ok": None if gap is None or bound is None else gap <= bound,
            "claim_gap": max(claims) - min(claims) if several else None,
            "claim_bound": sum(strides[-2:]) if several else None,
            "starved_keys": total(rows, "starved"),
            "noisy_key": max(noise)[1] if noise else None,
            "noisy_score": max(noise)[0] * total(rows, "entitled_us") if noise else None,
        }


def cost(served: Rows, bills: Sequence[Bill], method: str) -> Iterator[Row]:
    paid: dict[tuple[int, str], list[Any]] = defaultdict(lambda: [0, Decimal(0)])
    for day_of, queue, worker_us, amount in bills:
        day = us(datetime.fromisoformat(f"{day_of}T00:00Z"))
        paid[day, queue][0] += worker_us
        paid[day, queue][1] += amount
    used = []
    for (day, queue, key), rows in grouped(
        served, lambda row: us(row["window_start"], DAY), "queue", "fairness_key"
    ):
        hours = [total(inside, "busy_us") for _, inside in grouped(rows, _hour_of_window)]
        mean = over(total(rows, "busy_us"), total(rows, "weighted_us"))
        reserved = floor(1e6 * (mean or max(row["weight"] for row in rows)) + 0.5)
        used.append(
            {"queue": queue, "fairness_key": key, "day": day, "busy_us": total(rows, "busy_us")}
            | {"bill": (day, queue if (day, queue) in paid else "*"), "peak": max(hours)}
            | {"wasted_us": total(rows, "wasted_us"), "reserved": reserved}
        )
    nothing = dict.fromkeys(("busy_us", "wasted_us", "peak", "reserved"), 0)
    used += [
        {"queue": bill[1], "fairness_key": "*", "day": bill[0], "bill": bill} | nothing
        for bill in paid.keys() - {row["bill"] for row in used}
    ]
    for (bill,), rows in grouped(
        used,
        "bill",
    ):
        worker_us, amount = paid[bill] if bill in paid else (None, Decimal(0))
        rows.sort(key=itemgetter("queue", "fairness_key"))
        weights = [row["busy_us" if method == "usage" else method] for row in rows]
        idle = divided(max(0, (worker_us or 0) - total(rows, "busy_us")), weights)
        millionths = divided(
            int(amount * 10**6),
            [row["busy_us"] + more for row, more in zip(rows, idle, strict=True)],
        )
        for row, more, part in zip(rows, idle, millionths, strict=True):
            yield {
                "day": to_datetime(row["day"]),
                "queue": row["queue"],
                "fairness_key": row["fairness_key"],
                "busy_us": row["busy_us"],
                "wasted_us": row["wasted_us"],
                "idle_allocated_us": more,
                "price": float(amount) * 3.6e9 / worker_us if worker_us else None,
                "amount": Decimal(part) / 10**6,
                "method": method,
            }


def _hour_of_window(row: Mapping[str, Any]) -> int:
    return us(row["window_start"], HOUR)


def divided(whole: int, weights: Sequence[int]) -> list[int]:
    """Divide by largest remainder; the first of equal ones gets more."""
    if not any(weights):
        weights = [1] * len(weights)
    parts = [whole * weight // sum(weights) for weight in weights]
    rest = [whole * weight % sum(weights) for weight in weights]
    for n in sorted(range(len(weights)), key=lambda n: -rest[n])[: whole - sum(parts)]:
        parts[n] += 1
    return parts
