"""Task ids and partitions of a bulk submit, computed for whole batches. The partition of an id or
ordering key is the same as in `core`."""

from __future__ import annotations

import zlib
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fairlead.errors import ConfigurationError

# A UUIDv7 has 74 free bits.
_PART_BITS, _ORDINAL_BITS, _SALT_BITS = 14, 34, 26
_SALT_MASK = (1 << _SALT_BITS) - 1


class IdSpace(NamedTuple):
    """Ids of one part (partition of the DataFrame) of one run of a job.

    Each id is a UUIDv7 of the millisecond in which the job was opened, the part, the ordinal of the
    row and a salt. The ids ascend in the order (part, ordinal), need no coordination, and are
    unique in a run.
    """

    millis: int
    part: int
    salt: int

    @classmethod
    def of(cls, opened_at: int, submission_id: str, epoch: str, part: int) -> IdSpace:
        """Return the id space of a part; `opened_at` in microseconds. Raise ConfigurationError for
        more parts than ids have room for."""
        if part >> _PART_BITS:
            raise ConfigurationError(
                f"a bulk submit has at most {1 << _PART_BITS:,} partitions: coalesce the DataFrame"
            )
        return cls(
            opened_at // 1000, part, zlib.crc32(f"{submission_id}/{epoch}".encode()) & _SALT_MASK
        )

    @property
    def high(self) -> int:
        """Upper 64 bits, shared by all ids of the space."""
        return (self.millis << 16) | (7 << 12) | (self.part >> 2)

    def lows(self, first: int, count: int) -> npt.NDArray[np.uint64]:
        """Return the lower 64 bits of the ids from ordinal `first` on. Raise ConfigurationError
        for more rows than a partition may have."""
        if first + count > 1 << _ORDINAL_BITS:
            raise ConfigurationError(
                f"a partition of a bulk submit has at most {1 << _ORDINAL_BITS:,} rows"
            )
        ordinals = np.arange(first, first + count, dtype=np.uint64)
        # Add the ordinal to the last bits too: a partition is the id modulo the number of
        # partitions, so rows that follow each other go to different partitions.
        salts = (ordinals + np.uint64(self.salt)) & np.uint64(_SALT_MASK)
        head = np.uint64((2 << 62) | ((self.part & 3) << 60))
        return head | (ordinals << np.uint64(_SALT_BITS)) | salts

    def ids(self, lows: npt.NDArray[np.uint64]) -> pa.Array:
        """Return the 16 bytes of each id, big-endian."""
        halves = np.empty((len(lows), 2), dtype=">u8")
        halves[:, 0] = self.high
        halves[:, 1] = lows
        return pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(16), len(lows), [None, pa.py_buffer(halves.tobytes())]
        )

    def partitions(
        self, lows: npt.NDArray[np.uint64], ordering_keys: pa.Array, counts: npt.NDArray[np.uint64]
    ) -> npt.NDArray[np.int16]:
        """Return the partition of each row, as `fairlead.core.sharding.partitions.partition_of`
        does. `counts`: number of partitions of each row's queue."""
        # Compute (high * 2^64 + low) modulo the count in 64 bits.
        high = (
            np.uint64(self.high) % counts * ((np.uint64(2**32) % counts) ** np.uint64(2) % counts)
        )
        by_id: npt.NDArray[np.uint64] = (high + lows % counts) % counts
        if ordering_keys.null_count == len(ordering_keys):
            return by_id.astype(np.int16)
        keys = ordering_keys.dictionary_encode()
        of_key = [zlib.crc32(key) for key in keys.dictionary.cast("binary").to_pylist()]
        hashes = np.array(of_key, dtype=np.uint64)[
            pc.fill_null(keys.indices, 0).to_numpy(zero_copy_only=False)
        ]
        chosen = np.where(
            ordering_keys.is_null().to_numpy(zero_copy_only=False), by_id, hashes % counts
        )
        return chosen.astype(np.int16)
