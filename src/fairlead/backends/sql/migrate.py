"""Migrations: numbered plain-SQL files, applied once, in order, each set in one transaction."""

from __future__ import annotations

import re
from importlib import resources
from typing import NamedTuple

from fairlead.clock import SYSTEM_CLOCK
from fairlead.errors import SchemaMismatch
from fairlead.ports.statements import Row, SqlDatabase, Statement, Steps

_FILE = re.compile(r"^(\d{4})_(\w+)\.sql$")
_STATEMENT_END = re.compile(r";[ \t]*$", re.MULTILINE)
_LOCK_KEY = 0x666169726C656164  # "fairlead": the advisory lock two migrating processes meet at

_CREATE = """CREATE TABLE IF NOT EXISTS fairlead_schema (
    version    integer PRIMARY KEY,
    name       text    NOT NULL,
    applied_at bigint  NOT NULL
)"""
_INSERT = {
    "sqlite": "INSERT INTO fairlead_schema (version, name, applied_at) VALUES (?1, ?2, ?3)",
    "postgres": "INSERT INTO fairlead_schema (version, name, applied_at) VALUES ($1, $2, $3)",
}
_EXISTS = {
    "sqlite": "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'fairlead_schema'",
    "postgres": "SELECT 1 WHERE to_regclass('fairlead_schema') IS NOT NULL",
}
_APPLIED = "SELECT version, name FROM fairlead_schema ORDER BY version"


class Migration(NamedTuple):
    """One file of migrations/<dialect>."""

    version: int
    name: str
    sql: str

    @property
    def statements(self) -> list[str]:
        """Its statements one by one; each ends at the end of a line with a semicolon."""
        return [part.strip() for part in _STATEMENT_END.split(self.sql) if _has_code(part)]


def migrations(dialect: str) -> list[Migration]:
    """All migrations of a dialect, in order."""
    found = []
    for file in resources.files(f"fairlead.backends.{dialect}").joinpath("migrations").iterdir():
        if match := _FILE.match(file.name):
            found.append(Migration(int(match[1]), f"{match[1]}_{match[2]}", file.read_text()))
    return sorted(found)


def migrate(database: SqlDatabase) -> list[str]:
    """Apply what is missing; answers the names applied. Safe to run twice and by many processes at
    once. Raises SchemaMismatch when the tables are newer than this code, and then changes
    nothing."""
    return database.run(_migrate(database))


def check(database: SqlDatabase) -> None:
    """Raises SchemaMismatch when the tables are missing, older or newer than this code; says which
    and what to run."""
    applied = database.look(_applied(database.dialect))
    known = migrations(database.dialect)
    if not applied:
        raise SchemaMismatch(f"{database.location} has no Fairlead tables; run `fairlead migrate`")
    _refuse_newer(database, applied)
    missing = [migration.name for migration in known[len(applied) :]]
    if missing:
        raise SchemaMismatch(
            f"the tables in {database.location} are older than this code: {', '.join(missing)} not"
            " applied; run `fairlead migrate`"
        )


def is_new(database: SqlDatabase) -> bool:
    """True when no migration was ever applied."""
    return not database.look(_applied(database.dialect))


def print_sql(database: SqlDatabase) -> str:
    """Return all migrations for this database as one script, to be read or run by hand."""
    return "\n".join(
        f"-- {migration.name}\n{migration.sql.strip()}\n"
        for migration in migrations(database.dialect)
    )


def _migrate(database: SqlDatabase) -> Steps[list[str]]:
    dialect = database.dialect
    if dialect == "postgres":
        # SQLite needs no lock: its transaction begins as the only writer.
        yield Statement(f"SELECT pg_advisory_xact_lock({_LOCK_KEY})")
    yield Statement(_CREATE)
    applied = yield Statement(_APPLIED)
    _refuse_newer(database, applied)
    done = []
    for migration in migrations(dialect)[len(applied) :]:
        for statement in migration.statements:
            yield Statement(statement)
        yield Statement(_INSERT[dialect], (migration.version, migration.name, SYSTEM_CLOCK.now()))
        done.append(migration.name)
    return done


def _applied(dialect: str) -> Steps[list[Row]]:
    if not (yield Statement(_EXISTS[dialect])):
        return []
    return list((yield Statement(_APPLIED)))


def _refuse_newer(database: SqlDatabase, applied: list[Row] | Row) -> None:
    """Raises SchemaMismatch unless what is applied is how our own migrations begin."""
    ours = [(migration.version, migration.name) for migration in migrations(database.dialect)]
    theirs = [(row[0], row[1]) for row in applied]
    if theirs != ours[: len(theirs)]:
        strange = next(name for (version, name) in theirs if (version, name) not in ours)
        raise SchemaMismatch(
            f"the tables in {database.location} are newer than this code: {strange} is not known"
            f" here; upgrade fairlead (this code knows {ours[-1][1]} as its last; `fairlead"
            " migrate` cannot go back)"
        )


def _has_code(part: str) -> bool:
    return any(line.strip() and not line.lstrip().startswith("--") for line in part.splitlines())
