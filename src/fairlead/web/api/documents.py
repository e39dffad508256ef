"""Results of the operations that only a console has."""

from __future__ import annotations

import msgspec

from fairlead.operate.documents import Instant


class ErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request was not served: the cause and the cure."""

    status: int
    title: str
    detail: str


class ErrorDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Response to a request that was not served."""

    error: ErrorDetail


class Rights(msgspec.Struct, frozen=True, kw_only=True):
    """Rights of the caller. `tenants`: null for all. `csrf_token` is for the header X-CSRF-Token of
    a client with a session cookie; a client with a bearer token needs none."""

    name: str
    actions: list[str]
    tenants: list[str] | None
    csrf_token: str | None


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A message that was delivered too often, of `size` bytes, with its first fields as the mask
    shows them."""

    id: str
    shard_key: str
    deliveries: int
    at: Instant
    size: int
    fields: dict[str, str]


class ChangedLetters(msgspec.Struct, frozen=True, kw_only=True):
    """Ids of the dead letters that were requeued or deleted; the others were none any more."""

    ids: list[str]
