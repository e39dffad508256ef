"""A picture of a simulation: the mean wait of every key, and the spread of these waits, in both
orders."""

from __future__ import annotations

import os
from pathlib import Path

from fairlead.errors import ConfigurationError
from fairlead.lab.simulate.run import Simulated

_FORMATS = (".svg", ".png", ".pdf")
_COLOURS = {"fifo": "#b3541e", "fair": "#1f6f8b"}


def check_plot(path: Path) -> None:
    """Raise ConfigurationError, before any long work, if no picture can be written to `path`."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ConfigurationError("--plot needs matplotlib: pip install 'fairlead[plot]'") from None
    if path.suffix.lower() not in _FORMATS:
        raise ConfigurationError(f"--plot {path}: use a name that ends in {', '.join(_FORMATS)}")
    if not os.path.isdir(path.parent):
        raise ConfigurationError(
            f"--plot {path}: there is no folder {path.parent}; create it first"
        )


def plot(simulated: Simulated, path: Path) -> None:
    """Draw the simulation. Raise ConfigurationError if the file cannot be written."""
    from matplotlib.figure import Figure

    report = simulated.report
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    by_rank, spread = figure.subplots(1, 2)
    for order, means in simulated.mean_waits.items():
        waits = list(means.values())
        ranks = range(1, len(waits) + 1)
        by_rank.plot(ranks, waits, ".", color=_COLOURS[order], label=order, markersize=4)
        spread.step(
            sorted(waits),
            [100 * rank / len(waits) for rank in ranks],
            color=_COLOURS[order],
            label=order,
        )
    by_rank.set(
        xlabel="keys, the one with most tasks first",
        ylabel="mean wait (polls)",
        xscale="log",
        yscale="log",
    )
    spread.set(
        xlabel="mean wait of a key (polls)",
        ylabel="keys with at most this mean wait (%)",
        xscale="log",
    )
    for axes in (by_rank, spread):
        axes.grid(alpha=0.3)
        axes.legend()
    figure.suptitle(f"{report.workload}: {report.tasks:,} tasks of {report.keys:,} keys")
    try:
        figure.savefig(path)
    except OSError as error:
        raise ConfigurationError(
            f"cannot write {path}: {error.strerror}; choose another --plot"
        ) from error
