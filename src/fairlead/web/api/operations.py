"""Routes of the JSON API, made from operations."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import asdict, replace
from starlette.responses import Response

from fairlead.core import values
from fairlead.operate.documents import document
from fairlead.operate.operations import Operation, converted, part_of
from fairlead.operate.read_operations import READS
from fairlead.web import routing
from fairlead.web.inputs import BadInput
from fairlead.web.page import Page
from fairlead.web.refusals import Refusal
from fairlead.web.routing import Handler, ScreenRoute, screen

PREFIX = "/api/v1"
JSON = "application/json"
_READS = {operation.name: operation for operation in READS}


def route_of(operation: Operation) -> ScreenRoute:
    """Return the route of an operation, whose handler runs after the checks of the console."""
    assert operation.path is not None
    path, name, scoped = PREFIX + operation.path, f"api_{operation.name}", operation.scoped
    if operation.right is None:
        return screen(path, _reader(operation), name=name, scoped=scoped)
    handler = _actor(operation)
    return routing.action(path, handler, name=name, action=operation.right, scoped=scoped)


def body_of(operation: Operation) -> type[msgspec.Struct] | None:
    """Return the body of a change: its arguments that are not in the path; None without any."""
    names = operation.not_in_path
    return part_of(operation.arguments, names) if names else None


def json_of(result: Any, kind: Any) -> bytes:
    """Return the document of a result of this type as JSON."""
    return msgspec.json.encode(document(result, kind))


def called(page: Page, operation: Operation, given: msgspec.Struct) -> Any:
    """Return the result of an operation for the viewer. Raise what it raises."""
    return operation.call(page if operation.needs_page else page.caller, given)


def _call(page: Page, operation: Operation, given: msgspec.Struct) -> bytes:
    return json_of(called(page, operation, given), operation.result)


def read(page: Page, name: str, *, of_facts: bool = False, seconds: float = 1.0) -> Any:
    """Return what the operation of this name reads with the parameters of a screen, which may have
    others too; viewers share it for some seconds. `of_facts`: the operation reads the facts."""
    operation = _READS[name]
    given = _asked(page, operation)
    key = (name, given, page.access.tenants)
    if of_facts:
        return page.of_facts(key, lambda _facts: called(page, operation, given), seconds)
    return page.shared(key, lambda: called(page, operation, given), seconds)


def _asked(page: Page, operation: Operation) -> msgspec.Struct:
    """Return the arguments in the address. Raise InvalidTask."""
    texts = {name: page.query.exact(name) for name in operation.arguments.__struct_fields__}
    found = _converted(page, texts, operation.arguments)
    if operation.has_filter and page.query.flag("no_key"):
        return replace(found, fairness_key="")
    return found


def _reader(operation: Operation) -> Handler:
    def respond(page: Page) -> bytes:
        return _call(page, operation, _asked(page, operation))

    def handle(page: Page) -> Response:
        known = operation.not_in_path
        _check_names(page, (*known, "no_key") if operation.has_filter else known)
        if not operation.is_shared:
            return Response(respond(page), media_type=JSON)
        scope = page.request.scope
        key = ("api", scope["path"], scope["query_string"], page.access.tenants)
        return Response(page.shared(key, lambda: respond(page)), media_type=JSON)

    return handle


def _converted(
    page: Page, texts: dict[str, str | None], kind: type[msgspec.Struct]
) -> msgspec.Struct:
    """Return the arguments that are in the path and in these texts. An empty text stands for no
    value, except where a value is needed. Raise InvalidTask."""
    found: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        text = page.request.path_params.get(field.name) or texts.get(field.name)
        if text or (text is not None and field.required):
            found[field.name] = text
    return converted(found, kind)


def _actor(operation: Operation) -> Handler:
    in_path, body = part_of(operation.arguments, operation.in_path), body_of(operation)
    status = 202 if operation.is_queued else 200

    def act(page: Page) -> Response:
        _check_names(page, ())
        path, sent = _converted(page, {}, in_path), _body(page, body)
        parts = (path,) if sent is None else (path, sent)
        given = {name: value for part in parts for name, value in asdict(part).items()}
        found = _call(page, operation, operation.arguments(**given))
        page.parts.reads.clear()
        return Response(found, status, media_type=JSON)

    return act


def _check_names(page: Page, known: tuple[str, ...]) -> None:
    """Raise BadInput for a parameter that the operation does not have: a filter with a wrong name
    would select other tasks."""
    for name, _ in page.query.pairs():
        if name not in known:
            raise BadInput(
                f"parameter {values.brief(name)} is unknown: use {', '.join(known) or 'none'}"
            )


def _body(page: Page, kind: type[msgspec.Struct] | None) -> msgspec.Struct | None:
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
