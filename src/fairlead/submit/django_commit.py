"""Django: call back after the commit of a connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.db import transaction

T = TypeVar("T")


def after_commit(connection: Any, call: Callable[[], None]) -> None:
    """Call back after the commit of the transaction, and never after its rollback or that of its
    savepoint; at once if no transaction is open, never if Django does not manage it."""
    try:
        transaction.on_commit(call, using=connection.alias, robust=True)
    except SynchronousOnlyOperation:
        call()  # on an event loop, where Django has no transactions
    except transaction.TransactionManagementError:
        pass  # by set_autocommit(False): Django reports no commit of such a transaction


async def call_in_thread(call: Callable[..., T], *args: Any) -> T:
    """Call in the thread in which asynchronous Django uses its connections."""
    return await sync_to_async(call, thread_sensitive=True)(*args)
