"""FastAPI: a dependency that submits tasks in the transaction of the request's session."""

from __future__ import annotations

from typing import Any

from fastapi import Depends

from fairlead.contrib.asgi import lifespan
from fairlead.contrib.sqlalchemy import Submitter


def submitter(session: Any) -> Any:
    """Return the dependency that gives a `Submitter` of a request's session: `Tasks =
    Annotated[Submitter, submitter(SessionDep)]`.

    `session`: the annotation by which your endpoints get it, such as `Annotated[AsyncSession,
    Depends(get_session, scope="function")]`. Within one request, FastAPI gives the same session to
    all that name it so.
    """

    def submitter_of(session: Any) -> Submitter:
        return Submitter(session)

    submitter_of.__annotations__["session"] = session
    return Depends(submitter_of)


__all__ = ["Submitter", "lifespan", "submitter"]
