"""Settings file of `fairlead pipeline tune`: contracts with fairness keys, and guard rails.
docs/how-to/tune.md has an example."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated

import msgspec

from fairlead.errors import ConfigurationError
from fairlead.pipeline.tuning.guard_rails import Guards


class Contract(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Contract with one fairness key."""

    queue: str
    fairness_key: str
    share: Annotated[float, msgspec.Meta(gt=0)]
    """Share of the worker time, in proportion to the shares of the other keys; a key without a
    contract has the weight of its tasks as its share."""


class TuneSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Contents of the settings file. Raises ConfigurationError for contradicting contracts."""

    contract: list[Contract] = []
    guards: Guards = Guards()

    def __post_init__(self) -> None:
        seen: set[tuple[str, str]] = set()
        for contract in self.contract:
            if (contract.queue, contract.fairness_key) in seen:
                what = f"contract of {contract.fairness_key!r} in {contract.queue}"
                raise ConfigurationError(f"{what}: duplicate; keep one of them")
            seen.add((contract.queue, contract.fairness_key))

    def due(self, queue: str) -> dict[str, float]:
        """Return the contracted shares of a queue, by key."""
        return {c.fairness_key: c.share for c in self.contract if c.queue == queue}


def load(path: Path | None) -> TuneSettings:
    """Return the settings of a file; without a file, the defaults. Raise ConfigurationError, with
    the reason, for a file that cannot be used."""
    if path is None:
        return TuneSettings()
    try:
        return msgspec.convert(tomllib.loads(path.read_text()), TuneSettings)
    except (OSError, ValueError, msgspec.ValidationError, ConfigurationError) as error:
        raise ConfigurationError(f"{path}: {error}") from error
