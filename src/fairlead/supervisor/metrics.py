"""Metrics of several workers as one: counters add up, gauges are labelled by node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

_ADDED = frozenset({"counter", "histogram", "summary"})

Labels = tuple[tuple[str, str], ...]


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """One number of a family."""

    name: str
    labels: Labels
    """Names and values, sorted."""
    value: float


class Family(msgspec.Struct, frozen=True, array_like=True):
    """All samples of one metric in one process."""

    name: str
    help: str
    type: str
    samples: list[Sample]


class Total:
    """The sum over all workers, dead ones included, so that no counter falls at a restart."""

    def __init__(self) -> None:
        self._latest: dict[int, tuple[str, list[Family]]] = {}
        self._ended: list[Family] = []

    def update(self, child: int, node: str, families: list[Family]) -> None:
        """Take the latest numbers of a process."""
        self._latest[child] = (node, families)

    def on_exit(self, child: int) -> None:
        """Keep the counters of a process that ended, and drop its gauges."""
        _, families = self._latest.pop(child, ("", []))
        counted = [family for family in families if family.type in _ADDED]
        self._ended = _summed([*self._ended, *counted])

    def families(self) -> list[Family]:
        """Return the families of all processes as one, sorted by name."""
        counted = [*self._ended]
        gauges: list[Family] = []
        for node, families in self._latest.values():
            counted += [family for family in families if family.type in _ADDED]
            gauges += [_labelled(f, node) for f in families if f.type not in _ADDED]
        return sorted(_summed(counted) + _joined(gauges), key=lambda family: family.name)


def _summed(families: Iterable[Family]) -> list[Family]:
    """Return one family of each name, with the sums of equal samples."""
    sums: dict[str, tuple[Family, dict[tuple[str, Labels], float]]] = {}
    for family in families:
        _, values = sums.setdefault(family.name, (family, {}))
        for sample in family.samples:
            # The time of a counter's creation cannot be added.
            if not sample.name.endswith("_created"):
                key = (sample.name, sample.labels)
                values[key] = values.get(key, 0.0) + sample.value
    return [
        Family(first.name, first.help, first.type, [Sample(*key, n) for key, n in values.items()])
        for first, values in sums.values()
    ]


def _joined(families: Iterable[Family]) -> list[Family]:
    """Return one family of each name, with all samples."""
    joined: dict[str, Family] = {}
    for family in families:
        joined.setdefault(
            family.name, Family(family.name, family.help, family.type, [])
        ).samples.extend(family.samples)
    return [*joined.values()]


def _labelled(family: Family, node: str) -> Family:
    samples = [
        Sample(sample.name, (*sample.labels, ("node", node)), sample.value)
        for sample in family.samples
    ]
    return Family(family.name, family.help, family.type, samples)


def labels_of(labels: Mapping[str, str]) -> Labels:
    """Return labels as a sorted tuple, so that equal labels compare equal."""
    return tuple(sorted(labels.items()))
