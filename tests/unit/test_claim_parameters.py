"""How much a claim sends to PostgreSQL, where each value of an array costs time on both sides."""

import pytest

from fairlead.backends.postgres.database import PostgresDatabase
from fairlead.backends.postgres.task_store import PostgresTaskStore
from fairlead.ports.task_store import Claim
from fairlead.testing.contract.tasks import NOW, make, wanted

COUNT = 100


@pytest.fixture
def store() -> PostgresTaskStore:
    return PostgresTaskStore(PostgresDatabase("postgresql://127.0.0.1/never_opened"))


def sent(store: PostgresTaskStore, claims: list[Claim]) -> int:
    """Return the number of values in the arrays of a claim."""
    params = store._claim("node", claims, NOW).statement.params  # type: ignore[attr-defined]
    return sum(len(param) for param in params if isinstance(param, list))


def test_a_claim_sends_an_id_for_each_task_and_what_they_share_once(
    store: PostgresTaskStore,
) -> None:
    assert sent(store, wanted(make(COUNT))) == COUNT + 4


def test_a_claim_sends_the_floors_of_ordering_keys_only_for_tasks_with_one(
    store: PostgresTaskStore,
) -> None:
    assert sent(store, wanted(make(COUNT, ordering_key="o"))) == COUNT + 4 + 3 * COUNT
