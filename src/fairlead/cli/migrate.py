"""`fairlead migrate`: create or update the tables."""

from __future__ import annotations

from typing import Annotated

import typer

from fairlead.backends.sql.migrate import print_sql
from fairlead.cli.options import OutputOptions
from fairlead.cli.output import print_result, say
from fairlead.cli.parameters import with_options


class MigrateOptions(OutputOptions, frozen=True, kw_only=True):
    """Options of `migrate`."""

    print_only: Annotated[bool, typer.Option("--print", help="Only print the SQL.")] = False


@with_options
def migrate(options: MigrateOptions) -> None:
    """Create or update the tables. Running this twice, or in two processes at once, is safe.

    Example: fairlead migrate --url postgresql://app@db/shop
    """
    with options.opened(may_be_new=True) as app:
        if options.print_only:
            store = app.connections.sql_store  # a database that is away, or new, is no hindrance
            say(print_sql(store.database, levels=store.keeps_levels))
            return
        applied = app.migrate()
        print_result(options.json, {"applied": applied}, "\n".join(applied) or "up to date")
