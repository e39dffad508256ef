"""Decoders of messages and records that another process may have written: whatever the data, they
raise one error only.

msgspec raises RecursionError for data that is nested too deeply and UnicodeError for text that is
none, beside its own DecodeError.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

T = TypeVar("T")


class Reader(Generic[T]):
    """A decoder of one type."""

    __slots__ = ("_decode",)

    def __init__(self, decode: Callable[[Any], T]) -> None:
        """`decode`: the method of a decoder of msgspec."""
        self._decode = decode

    def __call__(self, data: bytes | str) -> T:
        """Return the value in the data. Raise msgspec.DecodeError for all other data."""
        try:
            return self._decode(data)
        except (RecursionError, UnicodeError) as error:
            raise msgspec.DecodeError(str(error)) from error


def json_reader(form: type[T]) -> Reader[T]:
    """Return a reader of JSON."""
    return Reader(msgspec.json.Decoder(form).decode)
