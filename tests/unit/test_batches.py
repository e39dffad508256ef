"""The size of batches that the limits of a server refuse."""

from __future__ import annotations

import pytest

from fairlead.core.batches import BatchSize


def write(size: BatchSize, limit: int, batches: int) -> tuple[int, int]:
    """Write full batches; return how many entries were written, and how many writes were
    refused."""
    written = refused = 0
    for _ in range(batches):
        count = size.allowed
        if count > limit:
            size.refused(count)
            refused += 1
        else:
            size.accepted(count)
            written += count
    return written, refused


@pytest.mark.parametrize("limit", [1, 2, 7, 30, 499, 1000])
def test_a_lasting_limit_is_learnt(limit: int) -> None:
    size = BatchSize(1000)
    write(size, limit, 20)
    written, refused = write(size, limit, 1000)
    assert written >= 300 * limit
    assert refused <= 500


@pytest.mark.parametrize("limit", [1, 30])
def test_the_size_grows_back_once_the_limit_is_gone(limit: int) -> None:
    size = BatchSize(1000)
    write(size, limit, 20)
    assert size.allowed <= limit + 1 + limit // 10
    write(size, 1000, 60)
    assert size.allowed == 1000


def test_batches_that_are_not_full_say_nothing_about_a_greater_size() -> None:
    size = BatchSize(1000)
    size.refused(100)
    for _ in range(100):
        size.accepted(49)
    assert size.allowed == 50


def test_one_entry_that_is_refused_alone_leaves_the_size_as_it_was() -> None:
    size = BatchSize(1000)
    size.refused(1)
    assert size.allowed == 1000
