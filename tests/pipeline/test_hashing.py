"""`ingest --hash-keys` writes no clear key into the lake, and changes nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.backends.sql.history import SqlHistory
from fairlead.clock import SYSTEM_CLOCK
from fairlead.errors import ConfigurationError
from fairlead.model.history import EVENT_FIELDS
from fairlead.pipeline.bronze import ATTEMPTS, EVENTS
from fairlead.pipeline.export import Exporter
from fairlead.pipeline.hashing import SECRET, SECRET_FILE, Hashing, hashing_of, start_hashing
from fairlead.pipeline.history_rows import events_table
from fairlead.pipeline.jobs.erase import erase
from fairlead.pipeline.reconcile import reconcile
from fairlead.pipeline.warehouse.warehouse import Warehouse
from tests.pipeline.filling import add_attempts, connected, migrated
from tests.pipeline.frames import attempt
from tests.pipeline.tables_by_hand import put, rows_of
from tests.pipeline.test_erase import files_with
from tests.pipeline.warehouses import lake_in, root_of

TEXT = "0123456789abcdef secret"


@pytest.fixture
def lake(tmp_path: Path) -> Warehouse:
    return lake_in(tmp_path / "lake")


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Hashing:
    path = tmp_path / "secret"
    path.write_text(TEXT + "\n")
    monkeypatch.setenv(SECRET_FILE, str(path))
    return Hashing(TEXT.encode())


@pytest.fixture
def history(store_url: str) -> Iterator[SqlHistory]:
    store = migrated(store_url)
    with connected(store_url) as connection:
        add_attempts(connection, range(20))
    yield SqlHistory(store.database)
    store.database.close()


def test_a_hashed_lake_has_no_clear_key_and_one_digest_for_each_key(
    history: SqlHistory, lake: Warehouse, secret: Hashing
) -> None:
    start_hashing(lake)
    Exporter(history, lake, SYSTEM_CLOCK, rows=6).round()
    rows = rows_of(lake, ATTEMPTS)
    assert {r["fairness_key"] for r in rows} == {secret.name_of(f"tenant-{n}") for n in range(7)}
    assert {r["ordering_key"] for r in rows} == {
        secret.name_of(f"order-{n}") for n in range(20) if n % 3
    } | {None}
    assert {r["error_text"] for r in rows} == {None} and {r["error_type"] for r in rows} == {
        None,
        "Trouble",
    }
    assert len({r["unique_key_hash"] for r in rows}) == 20
    for n in range(20):
        for word in (f"tenant-{n % 7}", f"order-{n}", f"unique-{n}"):
            assert files_with(root_of(lake), word) == []
    assert not [
        path
        for path in root_of(lake).rglob("*")
        if path.is_file() and TEXT.encode() in path.read_bytes()
    ]
    assert reconcile(history, lake, SYSTEM_CLOCK).rows == 20


def test_a_hashed_key_is_erased_by_its_clear_name(
    history: SqlHistory, lake: Warehouse, secret: Hashing
) -> None:
    start_hashing(lake)
    exporter = Exporter(history, lake, SYSTEM_CLOCK)
    exporter.round()
    done = erase(lake, "tenant-3", SYSTEM_CLOCK)
    assert done.is_clean and done.tables[ATTEMPTS.name].rows == 3
    assert secret.name_of("tenant-3") not in {r["fairness_key"] for r in rows_of(lake, ATTEMPTS)}
    assert files_with(root_of(lake), secret.name_of("tenant-3")) == []
    assert reconcile(history, lake, SYSTEM_CLOCK).rows == 20


def test_hashed_events_lose_their_details_and_keep_their_other_columns(secret: Hashing) -> None:
    fields = dict.fromkeys(EVENT_FIELDS, 1) | {
        "task_id": "t",
        "kind": "resumed",
        "queue": "q",
        "name": "n",
        "fairness_key": "acme",
        "actor": "ann",
        "details": "acme!",
    }
    table = events_table("store", [tuple(fields.values())], 1)
    [hidden] = secret.hidden(table).to_pylist()
    [clear] = table.to_pylist()
    assert hidden == clear | {"fairness_key": secret.name_of("acme"), "details": None}
    assert secret.hidden(table).schema == EVENTS.arrow()


def test_a_digest_depends_on_the_secret_and_no_key_stays_null() -> None:
    one, other = Hashing(b"1" * 16), Hashing(b"2" * 16)
    assert re.fullmatch("[0-9a-f]{32}", one.name_of("acme")) and one.name_of("") == ""
    assert one.name_of("acme") == one.name_of("acme") != other.name_of("acme")
    assert "1111" not in repr(one)


def test_without_the_secret_or_with_another_one_nothing_is_exported(
    history: SqlHistory, lake: Warehouse, secret: Hashing, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert start_hashing(lake) == start_hashing(lake) == hashing_of(lake) == secret
    monkeypatch.delenv(SECRET_FILE)
    with pytest.raises(ConfigurationError, match=f"no secret: set {SECRET_FILE}"):
        Exporter(history, lake, SYSTEM_CLOCK).round()
    with pytest.raises(ConfigurationError, match="no secret"):
        erase(lake, "tenant-3", SYSTEM_CLOCK)
    monkeypatch.setenv(SECRET, "another secret of sixteen bytes")
    with pytest.raises(ConfigurationError, match="hashed with another secret") as refused:
        Exporter(history, lake, SYSTEM_CLOCK).round()
    assert "another secret of" not in str(refused.value)
    assert rows_of(lake, ATTEMPTS) == []


def test_a_lake_is_hashed_from_its_first_row_or_never(lake: Warehouse, secret: Hashing) -> None:
    put(lake, ATTEMPTS, [attempt()])
    with pytest.raises(ConfigurationError, match="has clear keys already"):
        start_hashing(lake)
    assert hashing_of(lake) is None


@pytest.mark.parametrize(
    ("environment", "what"),
    [
        ({}, "--hash-keys needs a secret"),
        ({SECRET: "short"}, "shorter than 16 bytes"),
        ({SECRET_FILE: "/none"}, "FileNotFoundError"),
    ],
)
def test_a_missing_or_too_short_secret_is_refused(
    lake: Warehouse, environment: dict[str, str], what: str
) -> None:
    with pytest.raises(ConfigurationError, match=what):
        start_hashing(lake, environment)
    assert hashing_of(lake, {}) is None
