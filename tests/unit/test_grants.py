"""Offers and grants between nodes, and the triggers that a table lends."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.fair.table import TriggerTable
from fairlead.core.grants.credits import CREDIT_SECONDS, Credits
from fairlead.core.grants.promises import PROMISE_SECONDS, RECENT, Promises
from fairlead.core.limits.limits import Limit
from fairlead.core.limits.slot_ledger import OrderingKey, SlotLedger
from fairlead.model import Trigger, TriggerPath
from fairlead.model.peer import Call, Grant, Offer, PeerMessage, Report
from fairlead.ports.notification import Notification, decode, pieces
from tests.builders import trigger
from tests.ids import id_of

PAY = ("mail", "pay")


def of_mail(number: int, name: str = "pay", **fields: Any) -> Trigger:
    return trigger(id_of(number), name, "a", queue="mail", **fields)


def grant(promises: Promises, offer: Offer, count: int, has_more: bool, now: float) -> None:
    triggers = [of_mail(number) for number in range(count)]
    promises.granted(Grant("n", offer.owner, offer.session, 0.0, has_more, triggers), now)


# the owner ------------------------------------------------------------------------------------------


def test_an_owner_grants_as_many_as_were_offered_and_no_more() -> None:
    credits = Credits()
    credits.offered(Offer("o", "n", 1, 3, [(*PAY, 9)]), 0.0)
    assert [credits.spend(*PAY) for _ in range(4)] == ["n", "n", "n", None]
    assert credits.are_spent
    credits.offered(Offer("o", "n", 1, 5, [(*PAY, 9)]), 0.1)
    assert [credits.spend(*PAY) for _ in range(3)] == ["n", "n", None]


def test_an_old_offer_is_not_used() -> None:
    credits = Credits()
    credits.offered(Offer("o", "n", 1, 10, [(*PAY, 9)]), 0.0)
    credits.expire(CREDIT_SECONDS)
    assert credits.spend(*PAY) is None
    assert CREDIT_SECONDS < PROMISE_SECONDS  # the node waits longer than the owner of the partition


# the offering node -----------------------------------------------------------------------------------------


def test_a_node_does_not_offer_the_same_room_twice() -> None:
    promises = Promises("n")
    promises.called(Call("o", [PAY]), 0.0)
    (offer,) = promises.offers(4, lambda *_: 4, 0.0)
    assert (offer.total, offer.names) == (4, [(*PAY, 4)])
    assert promises.offers(4, lambda *_: 4, 0.0) == []


def test_an_owner_without_more_tasks_is_offered_nothing_until_it_calls() -> None:
    promises = Promises("n")
    promises.called(Call("o", [PAY]), 0.0)
    (offer,) = promises.offers(2, lambda *_: 2, 0.0)
    grant(promises, offer, 2, False, 0.1)
    assert promises.offers(2, lambda *_: 2, 0.2) == []
    promises.called(Call("o", [PAY]), 0.3)
    (again,) = promises.offers(2, lambda *_: 2, 0.3)
    assert again.session > offer.session and again.total == 2


def test_an_unused_promise_expires_so_that_another_owner_is_offered_its_room() -> None:
    promises = Promises("n")
    promises.called(Call("o", [PAY]), 0.0)
    assert promises.offers(1, lambda *_: 1, 0.0)
    promises.called(Call("p", [PAY]), 0.1)
    assert promises.offers(1, lambda *_: 1, 0.1) == []
    assert promises.is_holding_back
    assert [offer.owner for offer in promises.offers(1, lambda *_: 1, 2 * RECENT)] == ["p"]


@given(st.integers(0, 2**32 - 1))
def test_lost_doubled_and_late_offers_never_make_an_owner_grant_more_than_promised(
    seed: int,
) -> None:
    random, promises, credits = Random(seed), Promises("n"), Credits()
    now, promised, granted = 0.0, 0, 0
    for _ in range(60):
        now += random.choice([0.0, 0.01, 0.3])
        if random.random() < 0.3:
            promises.called(Call("o", [PAY]), now)
        for offer in promises.offers(random.randrange(6), lambda *_: 100, now):
            promised = max(promised, offer.total) if offer.session == 1 else promised
            for _ in range(random.choice([0, 1, 2])):
                credits.offered(offer, now)
        used: dict[int, int] = {}
        while random.random() < 0.7 and (node := credits.spend(*PAY)) is not None:
            session, _ = credits.session(node, now)
            used[session] = used.get(session, 0) + 1
        for session, count in used.items():
            granted += count if session == 1 else 0
            triggers = [of_mail(number) for number in range(count)]
            promises.granted(Grant("n", "o", session, 0.0, True, triggers), now)
    assert granted <= promised


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
    assert table.lend(9, everything) == [] and not table.has_spare
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


@pytest.mark.parametrize(
    "message",
    [
        Call("o", [(f"queue {n}", f"name {n}") for n in range(40)]),
        Offer("o", "n", 1, 5, [(f"queue {n}", f"name {n}", n) for n in range(40)]),
        Grant("n", "o", 1, 0.5, True, [of_mail(n) for n in range(40)]),
        Report("o", "n", [*map(id_of, range(90))], ["x"], [(id_of(n), n) for n in range(80)]),
        Report(
            "o",
            "n",
            [*map(id_of, range(90))],
            [*map(id_of, range(9))],
            [(id_of(n), n) for n in range(80)],
            [*range(1, 180)],
        ),
    ],
    ids=["call", "offer", "grant", "old report", "report"],
)
def test_a_long_message_is_cut_and_every_part_can_be_read(message: PeerMessage) -> None:
    parts = [decode(piece).peer for piece in pieces(Notification(peer=message), 1000)]
    assert all(type(part) is type(message) for part in parts)
    if isinstance(message, Call):
        assert [each for part in parts for each in part.names] == message.names  # type: ignore[union-attr]
    if isinstance(message, Grant):
        assert [each for part in parts for each in part.triggers] == message.triggers  # type: ignore[union-attr]
    if isinstance(message, Report):
        for field in ("claimed", "returned", "ended"):
            found = [each for part in parts for each in getattr(part, field)]
            assert found == getattr(message, field)
        assert [each for part in parts for each in named(part)] == named(message)  # type: ignore[arg-type]
        # A run ends only after its claim is known.
        ended = [bool(part.ended) for part in parts]  # type: ignore[union-attr]
        assert not any(part.claimed for part in parts[ended.index(True) + 1 :])  # type: ignore[union-attr]


def named(report: PeerMessage) -> list[tuple[str, object, int | None]]:
    """Return (field, entry, version) of each task in a report."""
    assert isinstance(report, Report)
    versions = iter(report.versions)
    return [
        (field, entry, next(versions, None))
        for field in ("claimed", "returned", "ended")
        for entry in getattr(report, field)
    ]


def test_a_message_that_cannot_be_cut_is_dropped() -> None:
    long = msgspec.structs.replace(of_mail(1), fairness_key="k" * 2000)
    message = Notification(peer=Grant("n", "o", 1, 0.0, False, [long]))
    assert pieces(message, 1000) == []
