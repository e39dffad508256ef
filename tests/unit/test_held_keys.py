"""Held ordering keys: each head is checked in time, the oldest first, and a key is found by its
head."""

from __future__ import annotations

from fairlead.core.limits.slot_ledger import OrderingKey
from fairlead.core.triggers.held_keys import HEAL_SECONDS, SOON_SECONDS, Head, HeldKeys
from fairlead.model import State


def head(id: str, state: State = State.WAITING) -> Head:
    return Head(id, 1, 0, state)


def key(name: str) -> OrderingKey:
    return OrderingKey("q", name)


def test_each_head_is_checked_after_its_pause_and_the_oldest_first() -> None:
    keys = HeldKeys()
    keys.set_head(key("a"), head("1"), 0.0)
    keys.set_head(key("b"), head("2"), 1.0)
    keys.set_head(key("c"), head("3", State.PROCESSING), 2.0)
    assert keys.next_check() == 2.0 + SOON_SECONDS
    assert keys.due(2.0 + SOON_SECONDS, 10) == [(key("c"), head("3", State.PROCESSING))]
    keys.drop(key("c"))
    assert keys.next_check() == HEAL_SECONDS
    assert keys.due(HEAL_SECONDS + 1.0, 1) == [(key("a"), head("1"))]
    keys.check_later(key("a"), HEAL_SECONDS + 1.0)
    assert keys.due(HEAL_SECONDS + 1.0, 10) == [(key("b"), head("2"))]


def test_a_poke_makes_all_heads_due_at_once() -> None:
    keys = HeldKeys()
    keys.set_head(key("a"), head("1"), 0.0)
    keys.set_head(key("b"), head("2", State.PROCESSING), 0.0)
    keys.check_all(0.5)
    assert {found for found, _ in keys.due(0.5, 10)} == {key("a"), key("b")}


def test_a_key_is_found_by_its_head_until_the_head_changes_or_the_key_is_dropped() -> None:
    keys = HeldKeys()
    keys.add(key("a"))
    assert key("a") in keys
    assert keys.head(key("a")) is None
    keys.set_head(key("a"), head("1"), 0.0)
    assert keys.key_of("1") == key("a")
    keys.set_head(key("a"), head("2"), 0.0)
    assert keys.key_of("1") is None
    assert keys.key_of("2") == key("a")
    keys.drop(key("a"))
    assert keys.key_of("2") is None
    assert keys.next_check() is None
    assert len(keys) == 0
