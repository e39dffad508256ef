"""Django's connections: run steps in the transaction of the caller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from asgiref.sync import sync_to_async
from django.db import connections, transaction

T = TypeVar("T")


def join(connection: Any, run: Callable[[Any], T]) -> T:
    """Call `run` with the driver's connection, in the open transaction of Django's connection, else
    in one of its own. Raise Django's errors, by which Django knows a connection that is broken."""
    connection.validate_thread_sharing()
    connection.validate_no_broken_transaction()
    block = transaction.atomic(using=connection.alias, savepoint=False)
    with block, connection.wrap_database_errors:
        if "cursor" in vars(connections[connection.alias]):
            connection.cursor().close()  # a TestCase replaces the method, to refuse this database
        return run(connection.connection)


async def join_async(connection: Any, run: Callable[[Any], T]) -> T:
    """Do what `join` does, in the thread in which asynchronous Django uses its connections."""
    return await sync_to_async(join, thread_sensitive=True)(connection, run)
