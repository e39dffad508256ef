"""Django: call back after the commit of a connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.core.exceptions import SynchronousOnlyOperation
from django.db import transaction


def after_commit(connection: Any, call: Callable[[], None]) -> None:
    """Call back after the commit of the transaction, and never after its rollback or that of its
    savepoint; at once if no transaction is open."""
    try:
        transaction.on_commit(call, using=connection.alias, robust=True)
    except SynchronousOnlyOperation:
        call()  # on an event loop, where Django has no transactions
