"""Migrations: numbered files of plain SQL, applied once and in order.

All missing migrations are applied in one transaction. The package of a database has the files in
`migrations/`. Its `migrations.sql` has the statements that record which ones are applied: create,
exists, applied, add, and also isolate and lock, if writers run concurrently, and hidden, if a right
can be missing.

`migrations/levels.sql` makes the tables of levels, in the same transaction, where an application
keeps levels (`SqlStore.keeps_levels`).
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


def levels_of(package: str) -> Migration:
    """Return what makes the tables of levels, in the package of a database; it has no number."""
    file = resources.files(package).joinpath("migrations", "levels.sql")
    return Migration(0, "levels", file.read_text())


LEVELS = "fairlead_backlog"
"""One of the tables of levels, which are made together."""


CURE = "run `fairlead migrate`"
"""Cure for a missing table or column."""

_RAISED = "P0001"
"""SQLSTATE of an exception that a function of the database raised."""


def migrate(database: SqlDatabase, *, levels: bool = False) -> list[str]:
    """Apply the missing migrations and return their names. With `levels`, also make the tables of
    levels if they are missing, and return "levels" too.

    Safe to run twice, and by many processes at once. Raise SchemaMismatch, and change nothing, if
    the tables are newer than this code. Raise ConfigurationError if a trigger refuses a command.
    """
    try:
        return database.run(_migrate(database, levels), is_patient=True)
    except Exception as error:
        if getattr(error, "sqlstate", None) != _RAISED:
            raise
        reason = str(error).splitlines()[0]
        raise ConfigurationError(
            f"{database.location}: {reason}; this is the refusal of an event trigger, so disable it"
            " for `fairlead migrate`"
        ) from error


def check(database: SqlDatabase, *, levels: bool = False) -> None:
    """Raise SchemaMismatch if the tables are missing, older or newer than this code, and with
    `levels` also if the tables of levels are missing. Raise ConfigurationError if this role may not
    use their schema.

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
    if levels and not database.read_now(_exists(database, LEVELS)):
        raise SchemaMismatch(
            f"{database.location} has no tables for the levels of fair queues; run `fairlead"
            " migrate` with the backlog setting of this application (FAIRLEAD_BACKLOG=database)"
        )


def is_new(database: SqlDatabase) -> bool:
    """Return whether no migration was ever applied."""
    return not database.read_now(_applied(database))


def print_sql(database: SqlDatabase, *, levels: bool = False) -> str:
    """Return all migrations for this database, and with `levels` the tables of levels, as one
    script, to be read or run by hand."""
    every = [*migrations(database), *([levels_of(package_of(database))] if levels else [])]
    return "\n".join(f"-- {each.name}\n{each.sql.strip()}\n" for each in every)


def _migrate(database: SqlDatabase, levels: bool) -> Steps[list[str]]:
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
    if levels and not (yield from _exists(database, LEVELS)):
        made = levels_of(package_of(database))
        for statement in made.statements:
            yield Statement(statement)
        done.append(made.name)
    return done


def _exists(database: SqlDatabase, table: str) -> Steps[bool]:
    return bool((yield Statement(_statements(database)["exists"], (table,))))


def _applied(database: SqlDatabase) -> Steps[list[Row]]:
    if not (yield from _exists(database, "fairlead_schema")):
        return []
    return list((yield Statement(_statements(database)["applied"])))


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
