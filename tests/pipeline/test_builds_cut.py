"""Readers see one build, whole, whatever happens to the connections to a catalog in PostgreSQL
while it is published. Without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier
from traceback import format_exception
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from psycopg import sql
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy import event

from fairlead.errors import ConfigurationError, StoreUnavailable
from fairlead.pipeline.warehouse.builds import Builds
from fairlead.pipeline.warehouse.location import Location
from fairlead.pipeline.warehouse.warehouse import Warehouse
from services.postgres import PostgresServer
from tests.pipeline.test_builds import NOW, both, publish, read_main, read_newest, staged

pytestmark = pytest.mark.parametrize("catalog_url", ["postgres"], indirect=True)


@contextmanager
def cut_at(
    warehouse: Warehouse, server: PostgresServer, number: int
) -> Iterator[Callable[[], int]]:
    """Cut the connection before the statement or commit with this number, counted from 0. Yield
    a function that returns how many there were."""
    assert isinstance(warehouse.catalog, SqlCatalog)
    engine, count = warehouse.catalog.engine, 0

    def cut(connection: Any, *_: Any) -> None:
        nonlocal count
        if count == number:
            backend = connection.connection.driver_connection.info.backend_pid
            server.execute(f"SELECT pg_terminate_backend({backend}, 10000)")
        count += 1

    for name in ("before_cursor_execute", "commit"):
        event.listen(engine, name, cut)
    try:
        yield lambda: count
    finally:
        for name in ("before_cursor_execute", "commit"):
            event.remove(engine, name, cut)


def publish_staged(warehouse: Warehouse, snapshots: dict[str, int]) -> bool:
    builds = Builds(warehouse)
    before, seen = builds.newest()
    build = before.after(snapshots)
    if not builds.publish(build, seen, NOW):
        return False
    builds.finish(build)
    return True


def assert_whole(warehouse: Warehouse) -> list[str]:
    """Check that all tables have the same rows, also for engines that know no builds after the next
    build has begun. Return them."""
    found = read_newest(warehouse)
    assert found == both(*found["gold.things"])
    builds = Builds(warehouse)
    builds.finish(builds.newest()[0])
    assert read_main(warehouse) == found
    return found["gold.things"]


def test_a_connection_cut_at_any_statement_leaves_readers_one_build(
    warehouse: Warehouse, postgres_server: PostgresServer
) -> None:
    publish(warehouse, "a")
    number, failed = 0, True
    while failed:
        failed, name = False, f"b{number}"
        snapshots = staged(warehouse, name, name)
        with cut_at(warehouse, postgres_server, number) as count:
            try:
                publish_staged(warehouse, snapshots)
            except StoreUnavailable:
                failed = True
        assert failed == (count() > number)
        found = assert_whole(warehouse)
        number += 1
    assert name in found and number > 8


def test_a_commit_whose_answer_is_lost_leaves_readers_one_build(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(warehouse, "a")
    assert isinstance(warehouse.catalog, SqlCatalog)
    dialect, wanted = warehouse.catalog.engine.dialect, sorted(["a", "b0", "b1", "b2"])
    for number in range(3):  # ops.builds, and each of the two tables
        snapshots, commits = staged(warehouse, f"b{number}", f"b{number}"), 0

        def commit(connection: Any, number: int = number) -> None:
            nonlocal commits
            connection.commit()
            commits += 1
            if commits == number + 1:
                raise psycopg.OperationalError("server closed the connection unexpectedly")

        with monkeypatch.context() as patched:
            patched.setattr(dialect, "do_commit", commit)
            with pytest.raises(StoreUnavailable, match="closed the connection"):
                publish_staged(warehouse, snapshots)
        assert f"b{number}" in assert_whole(warehouse)
    assert assert_whole(warehouse) == wanted


@pytest.mark.parametrize("isolation", ["read committed", "serializable"])
def test_of_builds_that_publish_at_once_one_succeeds_and_the_others_are_refused(
    warehouse: Warehouse, postgres_server: PostgresServer, isolation: str
) -> None:
    database = sql.Identifier(warehouse.location.catalog.rpartition("/")[2])
    with psycopg.connect(postgres_server.url, autocommit=True) as admin:
        change = sql.SQL("ALTER DATABASE {} SET default_transaction_isolation = {}")
        admin.execute(change.format(database, sql.Literal(isolation)))
    publish(warehouse, "a")
    wanted, start = ["a"], Barrier(4)

    def one(name: str) -> bool:
        own = Warehouse(warehouse.location)
        builds = Builds(own)
        before, seen = builds.newest()
        build = before.after(snapshots[name])
        start.wait()
        return builds.publish(build, seen, NOW)

    for number in range(4):
        names = [f"b{number}-{each}" for each in range(4)]
        snapshots = {name: staged(warehouse, name, name) for name in names}
        with ThreadPoolExecutor(4) as threads:
            done = list(threads.map(one, names))
        assert done.count(True) == 1
        wanted.append(names[done.index(True)])
        assert assert_whole(warehouse) == sorted(wanted)


def test_connections_that_end_between_two_commits_are_opened_again(
    warehouse: Warehouse, postgres_server: PostgresServer
) -> None:
    builds = Builds(warehouse)
    before, seen = builds.newest()
    build = before.after(staged(warehouse, "a", "a"))
    postgres_server.disconnect(warehouse.location.catalog)
    assert builds.publish(build, seen, NOW)
    postgres_server.disconnect(warehouse.location.catalog)
    builds.finish(build)
    postgres_server.disconnect(warehouse.location.catalog)
    assert assert_whole(warehouse) == ["a"]


def test_an_error_never_has_the_password_of_the_catalog(
    warehouse: Warehouse, postgres_server: PostgresServer
) -> None:
    password, user = "p@ss:w/r d%?#[x]'&=", postgres_server.fresh_name()
    shown, host = quote(password, safe=""), warehouse.location.catalog.rpartition("@")[2]
    lake = Warehouse(Location.of(warehouse.location.lake, f"postgresql://{user}:{shown}@{host}"))
    with psycopg.connect(postgres_server.url, autocommit=True) as admin:
        role = sql.SQL("ROLE {} LOGIN SUPERUSER PASSWORD {}").format
        name = sql.Identifier(user)
        admin.execute(sql.SQL("CREATE {}").format(role(name, sql.Literal(password))))
        publish(lake, "a")
        admin.execute(sql.SQL("ALTER {}").format(role(name, sql.Literal("another one"))))
    postgres_server.disconnect(lake.location.catalog)
    with pytest.raises(StoreUnavailable, match="password authentication failed") as failed:
        Builds(lake).finish(Builds(warehouse).newest()[0])
    with pytest.raises(ConfigurationError) as refused:
        _ = Warehouse(lake.location).catalog
    texts = *format_exception(failed.value), *format_exception(refused.value), repr(lake.location)
    assert not any(secret in text for secret in (password, shown) for text in texts)
