"""Random columns that depend only on a seed, on their purpose and on the row's key."""

from __future__ import annotations

from math import pi

from pyspark.sql import Column
from pyspark.sql import functions as F

# Spark's own `rand` depends on the partition and the position in it, and so changes with the
# partitions.


class Chance:
    """The random columns of one seed."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def hash(self, what: str, *key: Column | str) -> Column:
        """Return any bigint. The type of a key column counts: equal numbers as int and as bigint
        differ."""
        return F.xxhash64(
            *(F.col(k) if isinstance(k, str) else k for k in key), F.lit(self._seed), F.lit(what)
        )

    def below(self, bound: int, what: str, *key: Column | str) -> Column:
        """Return an int from 0 up to `bound`, exclusive."""
        return F.pmod(self.hash(what, *key), F.lit(bound)).cast("int")

    def uniform(self, what: str, *key: Column | str) -> Column:
        """Return a number above 0 and below 1."""
        return (F.shiftrightunsigned(self.hash(what, *key), 11).cast("double") + 0.5) / 2.0**53

    def exponential(self, what: str, *key: Column | str) -> Column:
        """Return an exponential number of mean 1."""
        return -F.log(self.uniform(what, *key))

    def normal(self, what: str, *key: Column | str) -> Column:
        """Return a normal number of mean 0 and deviation 1 (Box and Muller 1958)."""
        radius = F.sqrt(2 * self.exponential(f"{what}, radius", *key))
        return radius * F.cos(2 * pi * self.uniform(f"{what}, angle", *key))
