"""Permits of one shard are shared evenly, expire, and are renewed and returned."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.limits.permits import (
    STOP_AT,
    PermitLedger,
    ShardPermits,
    Share,
    decode,
    encode,
    fair_shares,
)

TTL = 15.0


# sharing ------------------------------------------------------------------------------------------

shares_of_nodes = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=2),
    st.builds(Share, st.integers(0, 50), st.integers(0, 50), st.integers(0, 9)),
    max_size=8,
)


@given(st.integers(0, 100), shares_of_nodes)
def test_shares_are_even_and_sum_to_the_total_or_the_wants(
    total: int, shares: dict[str, Share]
) -> None:
    due = fair_shares(total, shares)
    assert sum(due.values()) == min(total, sum(share.wanted for share in shares.values()))
    assert all(0 <= due[node] <= share.wanted for node, share in shares.items())
    for node, share in shares.items():
        if due[node] < share.wanted:
            assert all(due[node] >= other - 1 for other in due.values())


@given(st.integers(1, 20), st.permutations(range(8)))
def test_the_nodes_that_have_waited_longest_get_permits_that_cannot_be_shared_evenly(
    total: int, rotations: list[int]
) -> None:
    due = fair_shares(total, {f"n{n}": Share(0, 9, at) for n, at in enumerate(rotations)})
    rest = {f"n{rotations.index(at)}" for at in range(total % 8)}
    assert rest == {node for node, permits in due.items() if permits > total // 8}


# one node -----------------------------------------------------------------------------------------


def held(ledger: PermitLedger, pool: str) -> int:
    """Return the number of permits of a pool that nodes hold."""
    return sum(
        holding.shares[pool].held for holding in ledger.nodes.values() if pool in holding.shares
    )


def do_round(permits: ShardPermits, ledger: PermitLedger, now: float) -> PermitLedger:
    proposal = permits.propose(ledger, now)
    permits.written(proposal)
    return decode(encode(proposal.ledger))


def used_up(permits: ShardPermits, total: int, wanted: int) -> PermitLedger:
    """Return the ledger after `wanted` permits were in use and were released."""
    ledger = PermitLedger()
    while held(ledger, "total") < wanted:
        while permits.take("total", total, 0.0):
            pass
        ledger = do_round(permits, ledger, 0.0)
    while permits.running:
        permits.release("total")
    return ledger


def test_expired_permits_cannot_be_acquired_until_they_are_renewed() -> None:
    permits = ShardPermits("one", TTL)
    permits.take("total", 3, 0.0)
    ledger = do_round(permits, PermitLedger(), 0.0)
    assert permits.take("total", 3, 0.0)
    permits.release("total")
    assert not permits.take("total", 3, TTL * STOP_AT)
    do_round(permits, ledger, TTL + 1)
    assert permits.take("total", 3, TTL + 1)


def test_unused_pools_leave_the_ledger() -> None:
    permits = ShardPermits("one", TTL)
    ledger = PermitLedger()
    for n in range(50):
        permits.take(f"key {n}", 3, 0.0)
        ledger = do_round(permits, ledger, 0.0)
        assert permits.take(f"key {n}", 3, 0.0)
        permits.release(f"key {n}")
    ledger = do_round(permits, do_round(permits, ledger, 1.0), 2.0)
    assert len(encode(ledger)) < 100 and len(permits._pools) == 0


def test_lost_permits_are_not_renewed() -> None:
    one = ShardPermits("one", ttl=15)
    assert one.renewal(PermitLedger()) is None
    one.renewed(5.0)
    assert one.until == float("-inf")


def test_a_node_removed_from_the_ledger_gets_no_permits_while_its_runs_continue() -> None:
    """Other nodes may use the permits of these runs."""
    permits = ShardPermits("one", TTL)
    do_round(permits, used_up(permits, 10, 4), 1.0)
    assert permits.take("total", 10, 1.0)
    ledger = do_round(permits, PermitLedger(), 1.0 + TTL)
    assert ledger.nodes == {} and permits.until < 0
    assert not permits.take("total", 10, 1.0 + TTL)
    permits.release("total")
    ledger = do_round(permits, ledger, 2.0 + TTL)
    assert ledger.nodes["one"].shares and permits.until == 2.0 + 2 * TTL
