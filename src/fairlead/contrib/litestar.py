"""Litestar: a dependency that submits tasks in the transaction of the request's session."""

from __future__ import annotations

import inspect
from typing import Any

from litestar import di
from litestar.di import Provide
from litestar.types import Scope

from fairlead.contrib.asgi import lifespan
from fairlead.contrib.sqlalchemy import Submitter

# Litestar 3 will no longer infer which parameters are dependencies.
_NAMED: Any = getattr(di, "NamedDependency", None)
_DEPENDENCY: Any = Any if _NAMED is None else _NAMED[Any]


def submitter(session: str = "session") -> Provide:
    """Return the dependency that gives a `Submitter` of a request's session: `dependencies={
    "session": Provide(get_session), "tasks": submitter()}`. `session`: the name of the dependency
    that gives the session. Once the response has begun, a submit raises InvalidTask."""

    def submitter_of(**given: Any) -> Submitter:
        submitter, scope = Submitter(given[session]), given["scope"]
        submitter._has_ended = lambda: _has_begun(scope)
        return submitter

    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation)
        for name, annotation in ((session, _DEPENDENCY), ("scope", Scope))
    ]
    submitter_of.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        parameters, return_annotation=Submitter
    )
    submitter_of.__annotations__ = {session: _DEPENDENCY, "scope": Scope, "return": Submitter}
    return Provide(submitter_of, sync_to_thread=False)


def _has_begun(scope: Scope) -> bool:
    """Return whether the response of a request has begun. Litestar closes sessions before it."""
    state = scope.get("state", {}).get("_ls_connection_state")
    return bool(getattr(state, "response_started", False))


__all__ = ["Submitter", "lifespan", "submitter"]
