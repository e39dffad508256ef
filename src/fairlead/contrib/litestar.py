"""Litestar: a dependency that submits tasks in the transaction of the request's session."""

from __future__ import annotations

import inspect
from typing import Any

from litestar.di import Provide

from fairlead.contrib.asgi import lifespan
from fairlead.contrib.sqlalchemy import Submitter


def submitter(session: str = "session") -> Provide:
    """Return the dependency that gives a `Submitter` of a request's session: `dependencies={
    "session": Provide(get_session), "tasks": submitter()}`. `session`: the name of the dependency
    that gives the session."""

    def submitter_of(**given: Any) -> Submitter:
        return Submitter(given[session])

    parameter = inspect.Parameter(session, inspect.Parameter.KEYWORD_ONLY, annotation=Any)
    submitter_of.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [parameter], return_annotation=Submitter
    )
    submitter_of.__annotations__ = {session: Any, "return": Submitter}
    return Provide(submitter_of, sync_to_thread=False)


__all__ = ["Submitter", "lifespan", "submitter"]
