"""Migrations: numbered files of plain SQL, applied once and in order.

All missing migrations are applied in one transaction. The package of a database has the files in
`migrations/`. Its `migrations.sql` has the statements that record which ones are applied: create,
exists, applied, columns, add, and also isolate and lock, if writers run concurrently, and hidden,
if a right can be missing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import NamedTuple

from fairlead.backends.sql.sql_file import load, package_of
from fairlead.clock import SYSTEM_CLOCK
from fairlead.errors import ConfigurationError, SchemaMismatch
from fairlead.ports.statements import Row, SqlDatabase, Statement, Steps

_FILE = re.compile(r"^(\d{4})_(\w+)\.sql$")
_STATEMENT_END = re.compile(r";[ \t]*$", re.MULTILINE)


class Migration(NamedTuple):
    """A file of `migrations/`."""

    version: int
    name: str
    sql: str

    @property
    def statements(self) -> list[str]:
        """Statements of the file; a semicolon at the end of a line ends a statement."""
        return [part.strip() for part in _STATEMENT_END.split(self.sql) if _has_code(part)]


def migrations(database: SqlDatabase) -> list[Migration]:
    """Return all migrations for this database, in order."""
    return migrations_of(package_of(database))


@cache  # each application checks the tables
def migrations_of(package: str) -> list[Migration]:
    """Return all migrations in the package of a database, in order."""
    found = []
    for file in resources.files(package).joinpath("migrations").iterdir():
        if match := _FILE.match(file.name):
            found.append(Migration(int(match[1]), f"{match[1]}_{match[2]}", file.read_text()))
    return sorted(found)


CURE = "run `fairlead migrate`"
"""Cure for a missing table or column."""

_RAISED = "P0001"
"""SQLSTATE of an exception that a function of the database raised."""


def migrate(database: SqlDatabase) -> list[str]:
    """Apply the missing migrations and return their names.

    Safe to run twice, and by many processes at once. Raise SchemaMismatch, and change nothing, if
    the tables are newer than this code. Raise ConfigurationError if a trigger refuses a command.
    """
    try:
        return database.run(_migrate(database), is_patient=True)
    except Exception as error:
        if getattr(error, "sqlstate", None) != _RAISED:
            raise
        reason = str(error).splitlines()[0]
        raise ConfigurationError(
            f"{database.location}: {reason}; this is the refusal of an event trigger, so disable it"
            " for `fairlead migrate`"
        ) from error


def check(database: SqlDatabase) -> None:
    """Raise SchemaMismatch if the tables are missing, older or newer than this code. Raise
    ConfigurationError if this role may not use their schema.

    The error names the migrations and the command to run, or the grant.
    """
    applied = database.read_now(_applied(database))
    known = migrations(database)
    if not applied:
        for role, schema in database.read_now(_hidden(database)):
            raise ConfigurationError(
                f"{database.location}: the role {role} may not use the schema {schema}, which has"
                f" the tables: GRANT USAGE ON SCHEMA {schema} TO {role}"
            )
        raise SchemaMismatch(f"{database.location} has no Fairlead tables; run `fairlead migrate`")
    _refuse_newer(database, applied)
    missing = [migration.name for migration in known[len(applied) :]]
    if missing:
        raise SchemaMismatch(
            f"the tables in {database.location} are older than this code: {', '.join(missing)} not"
            " applied; run `fairlead migrate`"
        )


def is_new(database: SqlDatabase) -> bool:
    """Return whether no migration was ever applied."""
    return not database.read_now(_applied(database))


def print_sql(database: SqlDatabase) -> str:
    """Return all migrations for this database as one script, to be read or run by hand."""
    return "\n".join(
        f"-- {migration.name}\n{migration.sql.strip()}\n" for migration in migrations(database)
    )


def _migrate(database: SqlDatabase) -> Steps[list[str]]:
    sql = _statements(database)
    if "lock" in sql:
        yield Statement(sql["isolate"])
        yield Statement(sql["lock"])
    yield Statement(sql["create"])
    applied = yield Statement(sql["applied"])
    _refuse_newer(database, applied)
    done = []
    for migration in migrations(database)[len(applied) :]:
        for statement in migration.statements:
            yield Statement(statement)
        yield Statement(sql["add"], (migration.version, migration.name, SYSTEM_CLOCK.now()))
        done.append(migration.name)
    return done


def _applied(database: SqlDatabase) -> Steps[list[Row]]:
    sql = _statements(database)
    if not (yield Statement(sql["exists"])):
        return []
    return list((yield Statement(sql["applied"])))


def _hidden(database: SqlDatabase) -> Steps[Sequence[Row]]:
    """Return role and schema if a missing right hides the tables."""
    sql = _statements(database)
    return (yield Statement(sql["hidden"])) if "hidden" in sql else ()


def _statements(database: SqlDatabase) -> dict[str, str]:
    return load("migrations.sql", package_of(database))


def _refuse_newer(database: SqlDatabase, applied: list[Row] | Row) -> None:
    """Raise SchemaMismatch unless the applied migrations are the first ones of ours."""
    ours = [(migration.version, migration.name) for migration in migrations(database)]
    theirs = [(row[0], row[1]) for row in applied]
    if theirs != ours[: len(theirs)]:
        unknown = next((one[1] for one in theirs if one not in ours), None)
        if unknown is None:
            missing = next(one[1] for one, other in zip(ours, theirs, strict=False) if one != other)
            raise SchemaMismatch(
                f"the tables in {database.location} lack {missing}, but later migrations are"
                " applied: somebody changed fairlead_schema; restore that table from a backup"
            )
        raise SchemaMismatch(
            f"the tables in {database.location} are newer than this code: {unknown} is not known"
            f" here; upgrade fairlead (this code knows {ours[-1][1]} as its last; `fairlead"
            " migrate` cannot go back)"
        )


def _has_code(part: str) -> bool:
    return any(line.strip() and not line.lstrip().startswith("--") for line in part.splitlines())
