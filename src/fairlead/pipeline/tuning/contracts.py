"""What `tune` is told in a file: contracts and guard rails. See docs/how-to/tune.md for an
example."""

from __future__ import annotations

import tomllib
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec

from fairlead.core.tuning.guard_rails import Guards
from fairlead.errors import ConfigurationError


class Objective(StrEnum):
    """What is due to a key of the worker time."""

    WORKER_SECONDS = "worker-seconds"
    """The weight that its tasks were submitted with: equal parts, where they have none."""
    CONTRACTS = "contracts"
    """The part its contract names; to a key without one, as above."""


class Contract(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was promised to a key."""

    queue: str
    fairness_key: str
    share: Annotated[float, msgspec.Meta(gt=0)] | None = None
    """Of the worker time, against the shares and weights of the others."""
    fixed: bool = False
    """Its weight is nobody's to tune."""


class TuneSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    contract: list[Contract] = []
    limits: bool | None = None
    """Whether limits are computed too; None: those that count stay as they are."""
    guards: Guards = Guards()

    def due(self, queue: str) -> dict[str, float]:
        """The shares of a queue, by key."""
        return {
            c.fairness_key: c.share
            for c in self.contract
            if c.queue == queue and c.share is not None
        }

    def fixed(self, queue: str) -> frozenset[str]:
        """The keys of a queue that are not touched."""
        return frozenset(c.fairness_key for c in self.contract if c.queue == queue and c.fixed)


def load(path: Path | None, objective: Objective | None) -> tuple[TuneSettings, Objective]:
    """The settings of a file, and the objective: contracts, if there are any, unless it was asked
    for another. Raises ConfigurationError naming what is wrong."""
    settings = TuneSettings()
    if path is not None:
        try:
            settings = msgspec.convert(tomllib.loads(path.read_text()), TuneSettings)
        except ConfigurationError as error:
            raise ConfigurationError(f"{path}: {error}") from error
        except (
            OSError,
            UnicodeDecodeError,
            tomllib.TOMLDecodeError,
            msgspec.ValidationError,
        ) as error:
            raise ConfigurationError(f"{path}: {error}") from error
        _check(path, settings)
    has_shares = any(contract.share is not None for contract in settings.contract)
    if objective == Objective.CONTRACTS and not has_shares:
        raise ConfigurationError(
            "--objective contracts needs --contracts FILE with [[contract]] entries that name a"
            " share"
        )
    if objective is None:
        objective = Objective.CONTRACTS if has_shares else Objective.WORKER_SECONDS
    return settings, objective


def _check(path: Path, settings: TuneSettings) -> None:
    seen: set[tuple[str, str]] = set()
    for contract in settings.contract:
        what = f"{path}: contract of {contract.fairness_key!r} in {contract.queue}"
        if (contract.share is None) is not contract.fixed:
            raise ConfigurationError(f"{what}: give a share, or fixed = true")
        if (contract.queue, contract.fairness_key) in seen:
            raise ConfigurationError(f"{what}: there are two")
        seen.add((contract.queue, contract.fairness_key))
