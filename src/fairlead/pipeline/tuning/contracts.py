"""Settings file of `fairlead pipeline tune`: contracts with fairness keys, and guard rails.
docs/how-to/tune.md has an example."""

from __future__ import annotations

import tomllib
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec

from fairlead.errors import ConfigurationError
from fairlead.pipeline.tuning.guard_rails import Guards


class TuneObjective(StrEnum):
    """Rule for the share of worker time to which a fairness key is entitled."""

    WORKER_SECONDS = "worker-seconds"
    """Shares in proportion to the weights of the submitted tasks, `declared_weight`; equal shares
    if no task has a weight."""
    CONTRACTS = "contracts"
    """Shares from the contracts; the weights of the submitted tasks for keys without a contract."""


class Contract(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Contract with one fairness key: it has either a share or a fixed weight."""

    queue: str
    fairness_key: str
    share: Annotated[float, msgspec.Meta(gt=0)] | None = None
    """Share of the worker time, in proportion to the shares and weights of the other keys."""
    fixed: bool = False
    """Whether `tune` never changes the weight of the key."""


class TuneSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Contents of the settings file. Raises ConfigurationError for contradicting contracts."""

    contract: list[Contract] = []
    limits: bool | None = None
    """Whether to compute limits too; None keeps the limits of the active policy."""
    guards: Guards = Guards()

    def __post_init__(self) -> None:
        seen: set[tuple[str, str]] = set()
        for contract in self.contract:
            what = f"contract of {contract.fairness_key!r} in {contract.queue}"
            if (contract.share is None) is not contract.fixed:
                raise ConfigurationError(f"{what}: give either a share or fixed = true")
            if (contract.queue, contract.fairness_key) in seen:
                raise ConfigurationError(f"{what}: duplicate; keep one of them")
            seen.add((contract.queue, contract.fairness_key))

    def due(self, queue: str) -> dict[str, float]:
        """Return the contracted shares of a queue, by key."""
        return {
            c.fairness_key: c.share
            for c in self.contract
            if c.queue == queue and c.share is not None
        }

    def fixed(self, queue: str) -> frozenset[str]:
        """Return the keys of a queue whose weights `tune` never changes."""
        return frozenset(c.fairness_key for c in self.contract if c.queue == queue and c.fixed)


def load(path: Path | None, objective: TuneObjective | None) -> tuple[TuneSettings, TuneObjective]:
    """Return the settings of a file, and the objective.

    The default objective is CONTRACTS if any contract names a share, else WORKER_SECONDS. Raise
    ConfigurationError, with the reason, for a file that cannot be used, or for CONTRACTS without a
    share.
    """
    settings = TuneSettings()
    if path is not None:
        try:
            settings = msgspec.convert(tomllib.loads(path.read_text()), TuneSettings)
        except (OSError, ValueError, msgspec.ValidationError, ConfigurationError) as error:
            raise ConfigurationError(f"{path}: {error}") from error
    has_shares = any(contract.share is not None for contract in settings.contract)
    if objective == TuneObjective.CONTRACTS and not has_shares:
        raise ConfigurationError(
            "--objective contracts needs --contracts FILE with [[contract]] entries that have a"
            " share"
        )
    if objective is None:
        objective = TuneObjective.CONTRACTS if has_shares else TuneObjective.WORKER_SECONDS
    return settings, objective
