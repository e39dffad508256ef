"""Failures of Cassandra, by the driver's own exceptions and on a real node: what passes is an unavailable
store, what the server refuses is a wrong configuration."""

from __future__ import annotations

import pytest

pytest.importorskip("cassandra", reason="needs the extra cassandra")
from cassandra import (  # noqa: E402
    AuthenticationFailed,
    ConsistencyLevel,
    InvalidRequest,
    OperationTimedOut,
    ReadTimeout,
    Unauthorized,
    Unavailable,
    UnresolvableContactPoints,
    WriteFailure,
    WriteTimeout,
    WriteType,
)
from cassandra.cluster import NoHostAvailable  # noqa: E402
from cassandra.connection import ConnectionException  # noqa: E402
from cassandra.pool import NoConnectionsAvailable  # noqa: E402
from cassandra.protocol import (  # noqa: E402
    IsBootstrappingErrorMessage,
    OverloadedErrorMessage,
    ServerError,
    TruncateError,
)

from fairlead.backends.cassandra.session import CassandraSession, CassandraUrl  # noqa: E402
from fairlead.errors import (  # noqa: E402
    BatchTooLarge,
    ConfigurationError,
    SchemaMismatch,
    StoreUnavailable,
)

WRITE_TYPES = [
    name for name in vars(WriteType) if name.isupper() and isinstance(getattr(WriteType, name), int)
]
OUTAGES = [
    OverloadedErrorMessage(0x1001, "Server is overloaded", None),
    IsBootstrappingErrorMessage(0x1002, "Cannot read from a bootstrapping node", None),
    TruncateError(0x1003, "cannot truncate", None),
    ServerError(0x0000, "Column family ID mismatch: schema disagreement", None),
    Unavailable("no", ConsistencyLevel.LOCAL_QUORUM, 2, 1),
    ReadTimeout("slow", consistency=ConsistencyLevel.LOCAL_QUORUM, required_responses=2),
    *(
        WriteTimeout("slow", write_type=getattr(WriteType, name), required_responses=2)
        for name in WRITE_TYPES
    ),
    WriteFailure("failed", write_type=WriteType.SIMPLE),
    OperationTimedOut({}, None),
    NoHostAvailable("none", {"127.0.0.1": ConnectionException("refused", "127.0.0.1")}),
    NoHostAvailable("none", {"a": AuthenticationFailed("x"), "b": OSError("down")}),
    NoConnectionsAvailable("all busy"),
    UnresolvableContactPoints("no name"),
    ConnectionException("closed"),
    OSError("reset"),
]
REFUSALS = [
    Unauthorized("User app has no MODIFY permission on <table k.fairlead_backlog>"),
    AuthenticationFailed("Bad credentials"),
    NoHostAvailable("none", {"a": AuthenticationFailed("bad"), "b": AuthenticationFailed("bad")}),
]
TOO_LARGE = [
    InvalidRequest("Batch too large"),
    InvalidRequest("Encountered an oversized mutation (20971520/16777216) for keyspace: shop"),
    ServerError(0x0000, "Mutation of 20971520 is too large for the maximum size of 16777216", None),
]
MISSING = [
    InvalidRequest("unconfigured table fairlead_backlog"),
    InvalidRequest("table fairlead_backlog does not exist"),
    InvalidRequest("Keyspace 'shop' does not exist"),
]


def session(url: str = "cassandra://127.0.0.1:1/shop") -> CassandraSession:
    return CassandraSession(CassandraUrl.parse(url), "backlog.cql", ["create_backlog"])


def name_of(error: Exception) -> str:
    return f"{type(error).__name__}-{getattr(error, 'write_type', '')}-{str(error)[:30]}"


@pytest.mark.parametrize("error", OUTAGES, ids=name_of)
def test_a_failure_that_passes_is_an_unavailable_store(error: Exception) -> None:
    with pytest.raises(StoreUnavailable, match=type(error).__name__), session().translate_errors():
        raise error


@pytest.mark.parametrize("error", REFUSALS, ids=name_of)
def test_a_refusal_is_a_wrong_configuration_with_its_cure(error: Exception) -> None:
    with pytest.raises(ConfigurationError, match="grant|check user"), session().translate_errors():
        raise error


@pytest.mark.parametrize("error", MISSING, ids=name_of)
def test_a_missing_table_names_the_command_that_creates_it(error: Exception) -> None:
    with (
        pytest.raises(SchemaMismatch, match="fairlead migrate"),
        session().translate_errors(),
    ):
        raise error


@pytest.mark.parametrize("error", TOO_LARGE, ids=name_of)
def test_a_batch_beyond_the_limits_of_the_server_asks_for_a_smaller_one(error: Exception) -> None:
    with pytest.raises(BatchTooLarge, match="max_mutation_size"), session().translate_errors():
        raise error


def test_a_request_that_is_wrong_in_itself_is_a_bug_and_stays_one() -> None:
    with pytest.raises(InvalidRequest), session().translate_errors():
        raise InvalidRequest("Invalid unset value for column colour")


async def test_a_node_without_enough_replicas_is_unavailable_and_says_how_many_are_missing(
    migrated_cassandra_url: str,
) -> None:
    one = session(migrated_cassandra_url)
    await one.migrate()
    with pytest.raises(StoreUnavailable, match="needs 2 replicas and 1 is up: start the nodes"):
        await one.execute("owners", consistency=ConsistencyLevel.TWO)
    assert await one.execute("owners") == []
    await one.close()
