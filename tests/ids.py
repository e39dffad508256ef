"""Ids of tasks that tests can tell apart."""

from uuid import UUID


def id_of(number: int) -> str:
    """Return the id of a task with this number."""
    return str(UUID(int=number))


def id_named(name: str) -> str:
    """Return the id of a task with this name, of at most 16 bytes."""
    return str(UUID(bytes=name.encode().rjust(16, b"\0")))


def name_of(id: str) -> str:
    """Return the name of a task with an id of `id_named`."""
    return UUID(id).bytes.lstrip(b"\0").decode()
