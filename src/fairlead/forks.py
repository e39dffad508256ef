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
_awaited: weakref.WeakSet[Any] = weakref.WeakSet()
_taken: list[Any] = []
"""Locks that this process holds because it forks."""

PATIENCE = 1.0
"""Seconds that a fork waits for a lock."""


def drop_when_forked(one: Forkable) -> None:
    """Call `one.after_fork` in every forked child while `one` is alive."""
    _forkable.add(one)


def free_when_forked(lock: L) -> L:
    """Return the lock, which is free in every forked child: the thread that holds it is not there.
    What it guards must be whole after each step."""
    _locks.add(lock)
    return lock


def taken_to_fork(lock: L) -> L:
    """Return the lock, which the thread that forks holds meanwhile, and which is free in the child.
    A fork waits for it for PATIENCE at most, because its own thread may hold it."""
    _awaited.add(lock)
    return free_when_forked(lock)


def _before_fork() -> None:
    _taken.extend(lock for lock in list(_awaited) if lock.acquire(timeout=PATIENCE))


def _after_fork_in_parent() -> None:
    while _taken:
        _taken.pop().release()


def _after_fork() -> None:
    _taken.clear()
    for lock in list(_locks):
        lock._at_fork_reinit()  # as logging and threading do
    for one in list(_forkable):
        one.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork,
    )
