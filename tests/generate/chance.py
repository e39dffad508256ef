"""Random columns that depend on a seed, on what they are for and on the row's key, and on nothing
else."""

from __future__ import annotations

from math import pi

from pyspark.sql import Column
from pyspark.sql import functions as F

# Spark's own `rand` follows the partition and the place in it: other partitions, other rows.


class Chance:
    """All that one seed gives."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def hash(self, what: str, *key: Column | str) -> Column:
        """Any bigint. A key column counts with its type: the same number as int and as bigint
        differs."""
        return F.xxhash64(
            *(F.col(k) if isinstance(k, str) else k for k in key), F.lit(self._seed), F.lit(what)
        )

    def below(self, bound: int, what: str, *key: Column | str) -> Column:
        """An int from 0 up to `bound`, which is not reached."""
        return F.pmod(self.hash(what, *key), F.lit(bound)).cast("int")

    def uniform(self, what: str, *key: Column | str) -> Column:
        """Above 0 and below 1."""
        return (F.shiftrightunsigned(self.hash(what, *key), 11).cast("double") + 0.5) / 2.0**53

    def exponential(self, what: str, *key: Column | str) -> Column:
        """Of mean 1."""
        return -F.log(self.uniform(what, *key))

    def normal(self, what: str, *key: Column | str) -> Column:
        """Of mean 0 and deviation 1 (Box and Muller 1958)."""
        radius = F.sqrt(2 * self.exponential(f"{what}, radius", *key))
        return radius * F.cos(2 * pi * self.uniform(f"{what}, angle", *key))
