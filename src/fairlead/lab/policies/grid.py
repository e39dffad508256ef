"""The grid of policies: a TOML file with lists, of which every combination is a policy."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from fairlead.errors import ConfigurationError
from fairlead.lab.policies.policy import CandidatePolicy
from fairlead.lab.policies.weighing import check_rule

MOST_POLICIES = 10_000

_AXES = CandidatePolicy.__struct_fields__
_TABLES = ("grid", "recorded")
_EXAMPLE = "order = ['fifo', 'fair']"


class PolicyGrid(NamedTuple):
    """The policies of a file."""

    policies: list[CandidatePolicy]
    """Distinct policies, in the order of the file."""
    combinations: int
    """Number of combinations, before equal policies were merged."""
    recorded: CandidatePolicy | None
    """The policy of the recorded run; None if the file names none."""


def load(path: Path) -> PolicyGrid:
    """Return the grid of a file. Raise ConfigurationError, naming the file, the table and the
    fault."""
    try:
        table_values = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    try:
        return parse(table_values)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from error


def parse(table_values: Mapping[str, Any]) -> PolicyGrid:
    """Return the grid of a parsed file. Raise ConfigurationError, naming the table and the
    fault."""
    unknown = [name for name in table_values if name not in _TABLES]
    if unknown:
        raise ConfigurationError(f"unknown table {unknown[0]!r}; known: {', '.join(_TABLES)}")
    tables = table_values.get("grid", [])
    tables = [tables] if isinstance(tables, Mapping) else tables
    if (
        not isinstance(tables, list)
        or not tables
        or not all(isinstance(table, Mapping) for table in tables)
    ):
        raise ConfigurationError(f"no policies: write a table [grid] with lists, as in {_EXAMPLE}")
    axes = [
        _axes(table, f"grid {number}" if len(tables) > 1 else "grid")
        for number, table in enumerate(tables, 1)
    ]
    combinations = sum(prod(map(len, each.values())) for each in axes)
    if combinations > MOST_POLICIES:
        raise ConfigurationError(
            f"{combinations:,} combinations, at most {MOST_POLICIES:,}: shorten a list, or split"
            " the file"
        )
    policies = {
        msgspec.json.encode(policy, order="sorted"): policy
        for each in axes
        for policy in _product(each)
    }
    recorded = None
    if "recorded" in table_values:
        if not isinstance(table_values["recorded"], Mapping):
            raise ConfigurationError("recorded: write a table [recorded] with single values")
        recorded = _policy(table_values["recorded"], "recorded")
    return PolicyGrid(list(policies.values()), combinations, recorded)


def _axes(table: Mapping[str, Any], where: str) -> dict[str, list[Any]]:
    axes: dict[str, list[Any]] = {}
    for name, value in table.items():
        if name not in _AXES:
            raise ConfigurationError(f"{where}: unknown {name!r}; known: {', '.join(_AXES)}")
        values = value if isinstance(value, list) else [value]
        if not values:
            raise ConfigurationError(
                f"{where}: {name} is an empty list; leave it out, or give a value"
            )
        axes[name] = values
    return axes


def _product(axes: Mapping[str, list[Any]]) -> Iterator[CandidatePolicy]:
    for values in product(*axes.values()):
        yield _policy(dict(zip(axes, values, strict=True)), "grid")


def _policy(table_values: Mapping[str, Any], where: str) -> CandidatePolicy:
    table_values = {
        name: {} if name == "limits" and value == "none" else value
        for name, value in table_values.items()
    }
    try:
        policy = msgspec.convert(table_values, CandidatePolicy)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{where}: {error}") from error
    try:
        check_rule(policy.weights)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from error
    return policy.plain()
