"""Positions that a polling node reads again, because their tasks may commit late."""

from __future__ import annotations

from fairlead.backends.postgres.polling import UNSETTLED_SECONDS, Positions


def test_the_first_poll_reads_nothing_again_but_remembers_what_may_be_open() -> None:
    positions = Positions()
    assert positions.read_above(5000, 100, 101, 0.0) is None
    assert positions.read_above(5000, 101, 101, 0.1) == 4000
    assert positions.read_above(5000, 101, 101, 0.2) is None


def test_news_are_read_again_until_no_open_transaction_can_add_to_them() -> None:
    positions = Positions()
    positions.read_above(10, 100, 100, 0.0)
    positions.read_above(10, 100, 100, 0.1)
    assert positions.read_above(12, 100, 102, 0.2) == 10
    assert positions.read_above(12, 100, 103, 0.3) == 10, "transaction 100 is still open"
    assert positions.read_above(13, 100, 104, 0.4) == 10
    assert positions.read_above(13, 103, 105, 0.5) == 10, "12 is settled now, and read once more"
    assert positions.read_above(13, 105, 105, 0.6) == 12
    assert positions.read_above(13, 105, 105, 0.7) is None


def test_a_transaction_that_stays_open_does_not_make_a_node_read_for_ever() -> None:
    positions = Positions()
    positions.read_above(10, 100, 101, 0.0)
    assert positions.read_above(10, 100, 101, 0.1) == 0
    assert positions.read_above(10, 100, 101, UNSETTLED_SECONDS + 1) == 0
    assert positions.read_above(10, 100, 101, UNSETTLED_SECONDS + 2) is None


def test_a_sequence_that_was_set_back_is_read_from_its_beginning() -> None:
    positions = Positions()
    positions.read_above(5000, 100, 100, 0.0)
    positions.read_above(5000, 100, 100, 0.1)
    assert positions.read_above(3, 100, 100, 0.2) == 0
