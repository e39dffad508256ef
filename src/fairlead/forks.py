"""Files and held locks of a parent, which a forked child must not take over."""

from __future__ import annotations

import os
import weakref
from typing import Any, Protocol, TypeVar

L = TypeVar("L")


class Forkable(Protocol):
    """An object whose locks, threads and file descriptors a forked child must replace."""

    def after_fork(self) -> None:
        """Drop the parent's resources. Called in the child before anything else runs there."""


_forkable: weakref.WeakSet[Forkable] = weakref.WeakSet()
_locks: weakref.WeakSet[Any] = weakref.WeakSet()


def drop_when_forked(one: Forkable) -> None:
    """Call `one.after_fork` in every forked child while `one` is alive."""
    _forkable.add(one)


def free_when_forked(lock: L) -> L:
    """Return the lock, which is free in every forked child: the thread that holds it is not there.
    What it guards must be whole after each step."""
    _locks.add(lock)
    return lock


def _after_fork() -> None:
    for lock in list(_locks):
        lock._at_fork_reinit()  # as logging and threading do
    for one in list(_forkable):
        one.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
