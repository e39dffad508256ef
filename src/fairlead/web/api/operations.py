"""Operations of the JSON API, as values: their routes and the OpenAPI document are made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import msgspec
from starlette.responses import Response

from fairlead.core import values
from fairlead.web.api.conversion import document
from fairlead.web.api.documents import Done
from fairlead.web.inputs import DEFAULT_ROWS, MOST_ROWS, BadInput
from fairlead.web.page import Page
from fairlead.web.refusals import Refusal
from fairlead.web.routing import Handler, ScreenRoute, action, screen

PREFIX = "/api/v1"
JSON = "application/json"


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """Parameter of a path or a query."""

    name: str
    description: str
    schema: Mapping[str, Any]
    place: Literal["query", "path"] = "query"
    is_required: bool = False
    read: Callable[[Page], Any] | None = None
    """Function that returns the value in a request; None if others read the parameter."""


@dataclass(frozen=True, kw_only=True)
class Read:
    """An operation that reads."""

    name: str
    path: str
    """Path below PREFIX."""
    summary: str
    result: type[msgspec.Struct]
    respond: Callable[[Page], msgspec.Struct]
    parameters: tuple[Parameter, ...] = ()
    scoped: bool = False
    """Whether it keeps to the tenants of the caller; without it, a caller who is limited to
    tenants gets 403."""
    is_shared: bool = True
    """Whether callers share the result for a second."""

    @property
    def route(self) -> ScreenRoute:
        """Return the route, whose handler runs after the checks of the console."""
        return screen(
            PREFIX + self.path, _reader(self), name=f"api_{self.name}", scoped=self.scoped
        )


@dataclass(frozen=True)
class Act:
    """An operation that changes something."""

    name: str
    path: str
    """Path below PREFIX."""
    summary: str
    action: str
    body: type[msgspec.Struct] | None
    respond: Callable[[Page, Any], msgspec.Struct | None]
    """Function of the request and its body; None stands for Done."""
    result: type[msgspec.Struct] = Done
    status: int = 200
    _: KW_ONLY
    parameters: tuple[Parameter, ...] = ()
    scoped: bool = False

    @property
    def route(self) -> ScreenRoute:
        """Return the route, whose handler runs after the checks of the console."""
        return action(
            PREFIX + self.path,
            _actor(self),
            name=f"api_{self.name}",
            action=self.action,
            scoped=self.scoped,
        )


Operation = Read | Act


def text(name: str, description: str, *, is_required: bool = False) -> Parameter:
    """Return a text parameter of the query."""

    def read(page: Page) -> str | None:
        return page.query.required(name) if is_required else page.query.text(name)

    return Parameter(
        name=name,
        description=description,
        schema={"type": "string", "maxLength": values.MOST_KEY_BYTES},
        is_required=is_required,
        read=read,
    )


def choice(name: str, description: str, choices: list[str], default: str | None) -> Parameter:
    """Return a parameter that has one of some values."""
    schema: dict[str, Any] = {"type": "string", "enum": choices}
    if default is not None:
        schema["default"] = default
    return Parameter(
        name=name,
        description=description,
        schema=schema,
        read=lambda page: page.query.one_of(name, choices, default),
    )


ID = Parameter(
    name="id",
    description="Id.",
    schema={"type": "string"},
    place="path",
    is_required=True,
    read=lambda page: str(page.request.path_params["id"]),
)
ROWS = Parameter(
    name="rows",
    description="Rows of a page.",
    schema={"type": "integer", "minimum": 1, "maximum": MOST_ROWS, "default": DEFAULT_ROWS},
    read=lambda page: page.query.rows(),
)
AFTER = text("after", "Cursor: `next` of the page before, for the same other parameters.")


def json_of(result: msgspec.Struct) -> bytes:
    """Return the document of a result as JSON."""
    return msgspec.json.encode(document(result))


def _reader(operation: Read) -> Handler:
    def read(page: Page) -> Response:
        _check_names(page, operation)
        if not operation.is_shared:
            return Response(json_of(operation.respond(page)), media_type=JSON)
        scope = page.request.scope
        key = ("api", scope["path"], scope["query_string"], page.access.tenants)
        found = page.shared(key, lambda: json_of(operation.respond(page)))
        return Response(found, media_type=JSON)

    return read


def _actor(operation: Act) -> Handler:
    def act(page: Page) -> Response:
        _check_names(page, operation)
        result = operation.respond(page, _body(page, operation.body))
        page.parts.reads.clear()
        return Response(json_of(result or Done()), operation.status, media_type=JSON)

    return act


def _check_names(page: Page, operation: Operation) -> None:
    """Raise BadInput for a parameter that the operation does not have: a filter with a wrong name
    would select other tasks."""
    known = [each.name for each in operation.parameters if each.place == "query"]
    for name, _ in page.query.pairs():
        if name not in known:
            raise BadInput(
                f"parameter {values.brief(name)} is unknown: use {', '.join(known) or 'none'}"
            )


def _body(page: Page, kind: type[msgspec.Struct] | None) -> Any:
    raw: bytes = page.request.scope.get("fairlead.raw_body", b"")
    if kind is None:
        if raw:
            raise BadInput("this operation takes no body: send none")
        return None
    given = page.request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if raw and given != JSON:
        raise Refusal(415, "Not JSON", f"Send the body with Content-Type: {JSON}.")
    try:
        return msgspec.json.decode(raw or b"{}", type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise BadInput(f"the body cannot be used: {error}") from None
