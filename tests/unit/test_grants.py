"""Offers and grants between nodes, and the triggers that a table lends."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.fair.table import TriggerTable
from fairlead.core.grants.owners import REPLY_SECONDS, Owners
from fairlead.core.grants.wants import WANT_SECONDS, Wants
from fairlead.core.limits.limits import Limit
from fairlead.core.limits.slot_ledger import OrderingKey, SlotLedger
from fairlead.model import Trigger, TriggerPath
from fairlead.model.peer import Grant, PeerMessage, Result, Spare, Want
from fairlead.ports.notification import Notification, decode, pieces
from tests.builders import trigger
from tests.ids import id_of

PAY = ("mail", "pay")


def of_mail(number: int, name: str = "pay", **fields: Any) -> Trigger:
    return trigger(id_of(number), name, "a", queue="mail", **fields)


def want(number: int, count: int, *names: tuple[str, str, int]) -> Want:
    return Want("o", "n", number, count, [*names])


# the owner ------------------------------------------------------------------------------------------


def test_an_owner_grants_as_many_as_a_node_takes_and_no_more() -> None:
    wants = Wants()
    assert wants.on_want(want(1, 3, (*PAY, 9)), 0.0)
    assert [wants.choose(PAY) for _ in range(4)] == ["n", "n", "n", None]
    assert wants.are_met


def test_an_owner_grants_no_more_of_a_name_than_a_node_takes_of_it() -> None:
    wants = Wants()
    wants.on_want(want(1, 9, (*PAY, 2), ("mail", "read", 1)), 0.0)
    names = [PAY, PAY, PAY, ("mail", "read"), ("mail", "read"), ("mail", "other")]
    assert [wants.choose(name) for name in names] == ["n", "n", None, "n", None, None]


def test_an_old_want_is_not_used() -> None:
    wants = Wants()
    wants.on_want(want(1, 10, (*PAY, 9)), 0.0)
    wants.expire(WANT_SECONDS)
    assert wants.choose(PAY) is None


# the asking node ----------------------------------------------------------------------------------


def four(_: object) -> int:
    return 4


def test_a_node_asks_again_after_a_grant_and_not_before() -> None:
    owners = Owners(4)
    owners.on_spare("o", [PAY], 0.0)
    assert owners.ask(4, four, 0.0) == {"o": (4, [PAY])}
    assert owners.ask(9, four, 0.1) == {}
    owners.on_grant("o")
    assert owners.ask(2, four, 0.2) == {"o": (2, [PAY])}


def test_an_owner_that_grants_nothing_is_not_asked_until_it_announces_triggers() -> None:
    owners = Owners(4)
    owners.on_spare("o", [PAY], 0.0)
    assert owners.ask(2, four, 0.0)
    assert owners.ask(2, four, REPLY_SECONDS) == owners.ask(2, four, 9.0) == {}
    owners.on_spare("o", [PAY], 9.0)
    assert owners.ask(2, four, 9.0) == {"o": (2, [PAY])}


def test_an_owner_is_not_asked_for_names_that_the_node_does_not_take() -> None:
    owners = Owners(4)
    owners.on_spare("o", [PAY], 0.0)
    assert owners.ask(2, lambda name: 0, 0.0) == {}


def test_a_node_has_triggers_ready_if_all_of_its_slots_soon_become_free() -> None:
    owners = Owners(4)
    owners.started(100)
    assert owners.ahead(1.0) == 10  # in 0.1 s
    owners.started(30)
    assert owners.ahead(2.0) == 0


def test_owners_share_the_room_of_a_node() -> None:
    owners = Owners(4)
    for owner in ("o", "p", "q"):
        owners.on_spare(owner, [PAY], 0.0)
    asked = owners.ask(5, four, 0.0)
    assert [count for count, _ in asked.values()] == [2, 2, 1]


def test_room_that_an_owner_does_not_use_is_asked_of_another_owner() -> None:
    owners = Owners(4)
    owners.on_spare("o", [PAY], 0.0)
    assert [*owners.ask(1, four, 0.0)] == ["o"]
    owners.on_spare("p", [PAY], 0.1)
    assert owners.ask(1, four, 0.1) == {}
    assert owners.check_at == REPLY_SECONDS
    assert [*owners.ask(1, four, REPLY_SECONDS)] == ["p"]


@given(st.integers(0, 2**32 - 1))
def test_lost_doubled_and_late_wants_never_make_an_owner_grant_more_than_a_node_takes(
    seed: int,
) -> None:
    random, wants, owners = Random(seed), Wants(), Owners(4)
    now, sent = 0.0, list[Want]()
    wanted: dict[int, int] = {}
    """Count by number of the want."""
    for number in range(1, 60):
        now += random.choice([0.0, 0.01, 0.3])
        if random.random() < 0.3:
            owners.on_spare("o", [PAY], now)
        for count, _ in owners.ask(random.randrange(6), four, now).values():
            wanted[number] = count
            sent += [want(number, count, (*PAY, 9))] * random.choice([0, 1, 1, 2])
        while sent and random.random() < 0.6:
            wants.on_want(sent.pop(random.randrange(len(sent))), now)
        given = 0
        while random.random() < 0.7 and wants.choose(PAY):
            given += 1
        if given:
            last = wants._nodes["n"].number
            assert given <= wanted.pop(last)  # a want is used once
            wants.used("n")
            owners.on_grant("o")


# the table ----------------------------------------------------------------------------------------


def table_of(slots: int, *triggers: Trigger) -> TriggerTable:
    ledger = SlotLedger(slots)
    ledger.register_names({"pay", "limited"})
    ledger.register_task("mail", "limited", Limit(1))
    table = TriggerTable(ledger)
    for each in triggers:
        table.push(each)
    return table


def everything(_: Trigger) -> bool:
    return True


def test_a_table_lends_nothing_that_its_node_can_run() -> None:
    table = table_of(2, of_mail(1), of_mail(2), of_mail(3))
    assert table.lend(9, everything) == [] and not table.spare_names()
    assert [each.id for each in table.take(9, 0.0)[0]] == [id_of(1), id_of(2)]
    assert table.spare_names() == [PAY]
    assert [each.id for each in table.lend(9, everything)] == [id_of(3)]
    assert len(table) == 0


def test_triggers_that_a_limit_or_an_unknown_name_stops_are_lent_although_slots_are_free() -> None:
    table = table_of(9, *[of_mail(n, "limited") for n in range(3)], of_mail(9, "strange"))
    assert [each.id for each in table.take(9, 0.0)[0]] == [id_of(0)]
    assert sorted(each.id for each in table.lend(9, everything)) == [
        id_of(1),
        id_of(2),
        id_of(9),
    ]


def test_a_search_for_triggers_to_lend_leaves_them_to_be_lent() -> None:
    """The first trigger of its column waits for an ordering key that was reserved meanwhile."""
    keyed, other = of_mail(1, "strange", ordering_key="k", order_at=1), of_mail(2, "strange")
    table = table_of(9, keyed, other)
    assert table.take(9, 0.0) == ([], [])
    table._slot_ledger.reserve(OrderingKey("mail", "k"), id_of(0))
    assert table.spare_names() == table.spare_names() == [("mail", "strange")]
    assert table.lend(9, everything) == [other]
    table.freed(table._slot_ledger.release_reservation(OrderingKey("mail", "k")))
    assert table.take(9, 0.0) == ([], [])
    assert table.lend(9, everything) == [keyed]


@given(st.integers(0, 2**32 - 1))
def test_no_trigger_is_lost_or_doubled_between_take_lend_and_put_back(seed: int) -> None:
    random = Random(seed)
    ledger = SlotLedger(3)
    ledger.register_names({"pay", "limited"})
    ledger.register_task("mail", "limited", Limit(1))
    table = TriggerTable(ledger)
    names = ["pay", "limited", "strange"]
    waiting = {id_of(n) for n in range(40)}
    for number in range(40):
        key = random.choice([None, None, "k"])
        path = random.choice([TriggerPath.HOOK, TriggerPath.HOOK, TriggerPath.GRANT])
        table.push(
            of_mail(number, random.choice(names), ordering_key=key, order_at=number, path=path)
        )
    running: list[Trigger] = []
    gone: set[str] = set()
    for _ in range(80):
        taken, _ = table.take(random.randrange(4), 0.0)
        running += taken
        gone |= {each.id for each in taken}
        for lent in table.lend(random.randrange(3), lambda _: random.random() < 0.8):
            assert lent.id not in gone and lent.path != TriggerPath.GRANT
            if random.random() < 0.5:
                table.push(lent)
            else:
                gone.add(lent.id)
                if lent.ordering_key is not None:
                    table.freed(ledger.release_reservation(OrderingKey("mail", "k")))
        if running and random.random() < 0.7:
            done = running.pop(random.randrange(len(running)))
            table.freed(ledger.release(done, 0.0))
            if done.ordering_key is not None:
                table.freed(ledger.release_reservation(OrderingKey("mail", "k")))
        assert len(table) == len(waiting - gone)


# messages -----------------------------------------------------------------------------------------

RESULTS = [
    *(Result(id_of(n), n + 1, "claimed") for n in range(90)),
    *(Result(id_of(n), n + 1, "returned") for n in range(90, 99)),
    *(Result(id_of(n), n + 1, "ended", n) for n in range(80)),
]


@pytest.mark.parametrize(
    "message",
    [
        Spare("o", [(f"queue {n}", f"name {n}") for n in range(90)]),
        Want("o", "n", 1, 5, [("mail", "pay", 4)], RESULTS),
        Grant("n", "o", [of_mail(n) for n in range(40)]),
    ],
    ids=["spare", "want", "grant"],
)
def test_a_long_message_is_cut_and_every_part_can_be_read(message: PeerMessage) -> None:
    parts = [decode(piece).peer for piece in pieces(Notification(peer=message), 1000)]
    assert len(parts) > 1 and all(type(part) is type(message) for part in parts)
    field = {Spare: "names", Want: "results", Grant: "triggers"}[type(message)]
    assert [each for part in parts for each in getattr(part, field)] == getattr(message, field)
    if isinstance(message, Grant):
        assert [part.is_last for part in parts].index(True) == len(parts) - 1  # type: ignore[union-attr]
    if isinstance(message, Want):
        assert {part.count for part in parts} == {5}  # type: ignore[union-attr]


def test_a_want_of_many_names_keeps_the_first_ones() -> None:
    names = [(f"queue {n}", f"name {n}", n) for n in range(40)]
    message = Want("o", "n", 1, 5, names, RESULTS[:2])
    parts = [decode(piece).peer for piece in pieces(Notification(peer=message), 1000)]
    assert [each for part in parts for each in part.results] == RESULTS[:2]  # type: ignore[union-attr]
    for part in parts:
        assert isinstance(part, Want) and part.names == names[: len(part.names)] != []


def test_a_message_that_cannot_be_cut_is_dropped() -> None:
    long = msgspec.structs.replace(of_mail(1), fairness_key="k" * 2000)
    message = Notification(peer=Grant("n", "o", [long]))
    assert pieces(message, 1000) == []
