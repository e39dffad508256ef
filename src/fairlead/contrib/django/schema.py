"""The operation by which a Django migration runs one of Fairlead's own migrations."""

from __future__ import annotations

from typing import Any

from django.db.migrations.operations.base import Operation

from fairlead.backends.sql.migrate import Migration, migrations_of
from fairlead.backends.sql.sql_file import load
from fairlead.clock import SYSTEM_CLOCK
from fairlead.contrib.django.configuration import Configuration
from fairlead.errors import ConfigurationError

PACKAGES = {
    "sqlite": "fairlead.backends.sqlite",
    "postgresql": "fairlead.backends.postgres",
}
"""Packages with the SQL files, by Django's name of the database."""


class ApplySchema(Operation):
    """Apply the migration with this number, unless `fairlead migrate` has applied it. Only the
    database in FAIRLEAD['DATABASE'] gets the tables."""

    reduces_to_sql = True
    reversible = True
    atomic = True

    def __init__(self, version: int) -> None:
        self.version = version

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Change nothing: the models are unmanaged."""

    def database_forwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        """Run the statements of our SQL file, and record that it was applied."""
        connection = schema_editor.connection
        if connection.alias != Configuration.load().database:
            return
        migration, records = _migration(connection, self.version)
        schema_editor.execute(records["create"], params=None)
        if not schema_editor.collect_sql:
            with connection.cursor() as cursor:
                cursor.execute(records["applied"])
                if self.version in [row[0] for row in cursor.fetchall()]:
                    return
        for statement in migration.statements:
            schema_editor.execute(statement, params=None)
        # Our own names and numbers, never values of a user; sqlmigrate shows them in place.
        schema_editor.execute(
            "INSERT INTO fairlead_schema (version, name, applied_at) VALUES"  # noqa: S608
            f" ({migration.version}, '{migration.name}', {SYSTEM_CLOCK.now()})",
            params=None,
        )

    def database_backwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        """Drop all tables of Fairlead with their tasks, if the first migration is taken back. Raise
        ConfigurationError for a later one, which keeps tasks that an older Fairlead cannot read."""
        connection = schema_editor.connection
        if connection.alias != Configuration.load().database:
            return
        if self.version > 1:
            raise ConfigurationError("only all migrations of Fairlead together can be taken back")
        quote = connection.ops.quote_name
        cascade = " CASCADE" if connection.vendor == "postgresql" else ""
        with connection.cursor() as cursor:
            found = connection.introspection.get_table_list(cursor)
        names = [each.name for each in found if each.name.startswith("fairlead_")]
        for name in names:
            kind = "VIEW" if name == "fairlead_history" else "TABLE"
            schema_editor.execute(f"DROP {kind} IF EXISTS {quote(name)}{cascade}", params=None)
        if connection.vendor == "postgresql":
            for what in ("SEQUENCE IF EXISTS fairlead_ready_seq", "FUNCTION fairlead_free_key"):
                schema_editor.execute(f"DROP {what} CASCADE", params=None)

    def describe(self) -> str:
        """Return a line for the output of `manage.py migrate`."""
        return f"Apply Fairlead's migration {self.version:04}"


def is_missing_table(error: Exception) -> bool:
    """Return whether a statement failed because a table of Fairlead's does not exist."""
    text = str(error)
    return "no such table: fairlead_" in text or (
        '"fairlead_' in text and getattr(error.__cause__, "sqlstate", "") == "42P01"
    )


def _migration(connection: Any, version: int) -> tuple[Migration, dict[str, str]]:
    package = PACKAGES.get(connection.vendor)
    if package is None:
        raise ConfigurationError(
            f"the database {connection.alias!r} is one of {connection.vendor}: tasks live in SQLite"
            " or PostgreSQL; name another entry of DATABASES in FAIRLEAD['DATABASE']"
        )
    found = {each.version: each for each in migrations_of(package)}
    return found[version], load("migrations.sql", package)
