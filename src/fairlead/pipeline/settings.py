"""Settings of the pipeline from a file: objectives, prices, bills and rules of incidents.
docs/how-to/pipeline.md and docs/how-to/incidents.md have examples."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from fairlead.errors import ConfigurationError
from fairlead.pipeline.incidents.detector import Rules

_HOUR_US = 3_600_000_000
_MILLIONTH = Decimal("0.000001")
_UNITS = {"us": 1, "ms": 1000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000}


class Slo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Service-level objective: the share `objective` of the measured attempts takes at most
    `threshold`."""

    id: str
    queue: str
    threshold: str
    objective: Annotated[float, msgspec.Meta(gt=0, lt=1)]
    name: str = "*"
    measure: Literal["pickup", "run", "e2e"] = "pickup"

    @property
    def threshold_us(self) -> int:
        """Threshold in microseconds. Raise ConfigurationError."""
        number = self.threshold.rstrip("usmh")
        unit = _UNITS.get(self.threshold[len(number) :])
        if unit is None or not (number.isascii() and number.isdigit()):
            raise ConfigurationError(
                f"threshold {self.threshold!r}: use a number and us, ms, s, m or h, as in 500ms"
            )
        return int(number) * unit


class Cost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Prices of workers for days without a bill, and the rule for dividing a bill."""

    workers: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 0
    """Paid slots, all day."""
    worker_hour: Decimal = Decimal(0)
    """Price of a slot for an hour."""
    method: Literal["usage", "peak", "reserved"] = "usage"


class Bill(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Amount paid for a day."""

    day: date
    amount: Decimal
    worker_hours: Annotated[float, msgspec.Meta(gt=0, le=1e9)]
    queue: str = "*"


class Latency(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Latencies by key."""

    least: Annotated[int, msgspec.Meta(ge=1)] = 20
    """Least number of attempts for which a key and name have percentiles of an hour; fewer have
    those of the day only, because percentiles of a few runs say nothing."""


class PipelineSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All settings of a file."""

    slo: list[Slo] = []
    cost: Cost = Cost()
    bill: list[Bill] = []
    latency: Latency = Latency()
    incidents: Rules = Rules()

    def bills_for(self, days: Iterable[date]) -> list[tuple[date, str, int, Decimal]]:
        """Return (day, queue or '*', paid worker time in microseconds, amount) of each day (UTC),
        from its bill or the prices."""
        billed = {bill.day for bill in self.bill}
        wanted = set(days)
        found = [
            (
                bill.day,
                bill.queue,
                round(bill.worker_hours * 3600 * 1_000_000),
                bill.amount.quantize(_MILLIONTH),
            )
            for bill in self.bill
            if bill.day in wanted
        ]
        if self.cost.workers:
            hours = 24 * Decimal(str(self.cost.workers))
            amount = (hours * self.cost.worker_hour).quantize(_MILLIONTH)
            found += [(day, "*", round(hours * _HOUR_US), amount) for day in wanted - billed]
        return sorted(found)


def load(path: Path | None) -> PipelineSettings:
    """Return the settings of a file; without a file, the defaults, which have no objectives and no
    prices. Raise ConfigurationError with the wrong setting."""
    if path is None:
        return PipelineSettings()
    try:
        settings = msgspec.convert(
            tomllib.loads(path.read_text(), parse_float=Decimal), PipelineSettings
        )
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ConfigurationError(f"{path}: {error}") from error
    for slo in settings.slo:
        _ = slo.threshold_us
    of_a_day = settings.cost.worker_hour * Decimal(str(max(1, settings.cost.workers))) * 24
    amounts = [of_a_day, *(bill.amount for bill in settings.bill)]
    if not all(amount.is_finite() and 0 <= amount < 10**12 for amount in amounts):
        raise ConfigurationError(f"{path}: the amount of a day is at least 0 and below 10^12")
    if len({slo.id for slo in settings.slo}) < len(settings.slo):
        raise ConfigurationError(f"{path}: two objectives have the same id")
    return settings
