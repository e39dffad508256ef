"""Back-test of the capacity forecast: weeks of arrivals, each forecast from those before it.

    python bench/capacity.py [TRACE]    # the LCG trace by default, and generated weeks

For each history: pinball loss of the forecast median and 90th percentile in tasks an hour, beside
those of a naive forecast (the same hour a week ago, for both), and the share of hours at most the
forecast 90th percentile (0.9 is right). A trace shorter than two weeks is judged on the hours that
it has after its first week.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import random
import sys
from collections.abc import Sequence
from statistics import fmean

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src")]

import numpy as np  # noqa: E402

from fairlead.clock import MICROS  # noqa: E402
from fairlead.lab.policies.arrivals import of_trace  # noqa: E402
from fairlead.pipeline.capacity.forecast import HOURS, QUANTILES, forecast, pinball  # noqa: E402

TRACE = ROOT.parent / "shared" / "data" / "lcg-2005.swf.gz"


def judge(name: str, hours: Sequence[float]) -> None:
    """Print the errors of the forecasts of all weeks after the first."""
    ours: list[list[float]] = [[], []]
    naive: list[list[float]] = [[], []]
    covered, methods = [], []
    for begin in range(HOURS, len(hours), HOURS):
        past = [hours[n : n + HOURS] for n in range(0, begin, HOURS)]
        found, truth = forecast(past), hours[begin : begin + HOURS]
        methods.append(found.method)
        for hour, actual in enumerate(truth):
            guesses = (found.middle[hour], found.high[hour])
            for at, (quantile, guess) in enumerate(zip(QUANTILES, guesses, strict=True)):
                ours[at].append(pinball(guess, actual, quantile))
                naive[at].append(pinball(past[-1][hour], actual, quantile))
            covered.append(actual <= found.high[hour])
    print(
        json.dumps(
            {
                "history": name,
                "hours_judged": len(covered),
                "tasks_an_hour": round(fmean(hours), 1),
                "p50_loss": round(fmean(ours[0]), 2),
                "naive_p50_loss": round(fmean(naive[0]), 2),
                "p90_loss": round(fmean(ours[1]), 2),
                "naive_p90_loss": round(fmean(naive[1]), 2),
                "hours_within_p90": round(fmean(covered), 3),
                "methods": {method: methods.count(method) for method in sorted({*methods})},
            }
        )
    )


def generated(weeks: int, growth: float, noise: float, closed: int | None = None) -> list[float]:
    """Return hours with a shape by day and by week, growth a week, lognormal noise, and one closed
    week."""
    chance = random.Random(weeks)
    return [
        0.0
        if hour // HOURS == closed
        else (100 + 60 * math.sin(2 * math.pi * hour / 24) + 40 * (hour % HOURS < 120))
        * growth ** (hour // HOURS)
        * chance.lognormvariate(0, noise)
        for hour in range(weeks * HOURS)
    ]


def main() -> None:
    """Judge the trace and the generated weeks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", nargs="?", type=pathlib.Path, default=TRACE)
    arrivals = of_trace(parser.parse_args().trace)
    judge(arrivals.queue, np.bincount(arrivals.at // (3600 * MICROS)).astype(float).tolist())
    judge("steady shape, noise 0.3", generated(12, 1.0, 0.3))
    judge("steady shape, noise 0.3, week 6 closed", generated(12, 1.0, 0.3, closed=5))
    judge("5 % growth a week, noise 0.3", generated(12, 1.05, 0.3))
    judge("5 % decline a week, noise 0.6", generated(12, 0.95, 0.6))


if __name__ == "__main__":
    main()
