"""FastAPI: a dependency that submits tasks in the transaction of the request's session."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, get_args

from fastapi import Depends

from fairlead.contrib.asgi import lifespan
from fairlead.contrib.sqlalchemy import Submitter


def submitter(session: Any) -> Any:
    """Return the dependency that gives a `Submitter` of a request's session: `Tasks =
    Annotated[Submitter, submitter(SessionDep)]`.

    `session`: the annotation by which your endpoints get it, such as `Annotated[AsyncSession,
    Depends(get_session, scope="function")]`. Within one request, FastAPI gives the same session to
    all that name it so. After the end of the session, a submit raises InvalidTask.
    """

    async def submitter_of(session: Any) -> AsyncIterator[Submitter]:
        has_ended = False
        given = Submitter(session)
        given._has_ended = lambda: has_ended
        try:
            yield given
        finally:
            has_ended = True

    submitter_of.__annotations__["session"] = session
    scopes = [getattr(each, "scope", None) for each in get_args(session)[1:]]
    scope = next(filter(None, scopes), None)  # it ends with the session
    return Depends(submitter_of, scope=scope) if scope else Depends(submitter_of)


__all__ = ["Submitter", "lifespan", "submitter"]
