"""Operations of the JSON API, as values: routes, the OpenAPI document and MCP's tools are made of
them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, TypeVar, get_type_hints

import msgspec
from msgspec import Meta
from starlette.responses import Response

from fairlead.core import values
from fairlead.operate.filters import TaskFilters
from fairlead.web import routing
from fairlead.web.api.bodies import Body, Filter, Text
from fairlead.web.api.conversion import document
from fairlead.web.api.documents import Done
from fairlead.web.inputs import MOST_ROWS, BadInput
from fairlead.web.masking import check_search
from fairlead.web.page import Page
from fairlead.web.refusals import Refusal
from fairlead.web.routing import Handler, ScreenRoute, screen
from fairlead.web.task_filters import filters_of

PREFIX = "/api/v1"
JSON = "application/json"
MOST_ID = (1 << 63) - 1

Id = Annotated[int, Meta(ge=0, le=MOST_ID, extra_json_schema={"type": "string"})]
RowNumber = Annotated[int, Meta(ge=1, le=MOST_ROWS, description="Rows of a page.")]
Cursor = Annotated[
    Text, Meta(description="`next` of the page before, for the same other parameters.")
]
Function = TypeVar("Function", bound=Callable[..., Any])
_WHOLE = re.compile(r"-?[0-9]{1,20}")


@dataclass(frozen=True, kw_only=True)
class Read:
    """An operation that reads. Its function gets a viewer and the arguments by name."""

    name: str
    path: str
    """Path below PREFIX."""
    summary: str
    function: Callable[..., Any]
    arguments: type[msgspec.Struct]
    has_filter: bool
    """Whether the function gets a filter of tasks too; `arguments` then has its fields."""
    result: Any
    viewer: Callable[[Page], Any]
    """Function that returns the viewer of a request."""
    scoped: bool
    """Whether it keeps to the tenants of the caller; without it, a caller who is limited to
    tenants gets 403."""
    is_shared: bool
    """Whether callers share the result for a second."""
    is_tool: bool
    """Whether MCP has it as a tool."""

    @property
    def route(self) -> ScreenRoute:
        """Return the route, whose handler runs after the checks of the console."""
        return screen(
            PREFIX + self.path, _reader(self), name=f"api_{self.name}", scoped=self.scoped
        )

    def call(self, viewer: Any, given: msgspec.Struct, filters: TaskFilters | None) -> Any:
        """Return what the function returns."""
        names = (each for each in self.arguments.__struct_fields__ if not self.is_of_filter(each))
        own = {name: getattr(given, name) for name in names}
        return self.function(viewer, **own, **({"filters": filters} if self.has_filter else {}))

    def is_of_filter(self, name: str) -> bool:
        """Return whether an argument is a condition of the filter of tasks."""
        return self.has_filter and name in Filter.__struct_fields__


@dataclass(frozen=True, kw_only=True)
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
    result: Any = Done
    status: int = 200
    scoped: bool = False

    @property
    def route(self) -> ScreenRoute:
        """Return the route, whose handler runs after the checks of the console."""
        return routing.action(
            PREFIX + self.path,
            _actor(self),
            name=f"api_{self.name}",
            action=self.action,
            scoped=self.scoped,
        )


Operation = Read | Act


def read(
    reads: list[Read],
    path: str,
    *,
    name: str | None = None,
    base: type[Body] = Body,
    viewer: Callable[[Page], Any] = lambda page: page,
    scoped: bool = False,
    is_shared: bool = True,
    is_tool: bool = False,
) -> Callable[[Function], Function]:
    """Declare a function as an operation that reads, and add it to `reads`.

    The first line of its docstring is its summary, what it returns its result, and its parameters
    by keyword are its arguments, with the fields of `base`. For the base Filter, the function gets
    the filter of tasks as `filters`.
    """

    def declare(function: Function) -> Function:
        found = name or function.__name__
        reads.append(
            Read(
                name=found,
                path=path,
                summary=_summary(function),
                function=function,
                arguments=_arguments_of(function, found, base),
                has_filter=base is Filter,
                result=get_type_hints(function, include_extras=True)["return"],
                viewer=viewer,
                scoped=scoped,
                is_shared=is_shared,
                is_tool=is_tool,
            )
        )
        return function

    return declare


def act(
    acts: list[Act],
    path: str,
    *,
    action: str,
    name: str | None = None,
    status: int = 200,
    scoped: bool = False,
) -> Callable[[Function], Function]:
    """Declare a function of a page as an operation that changes something, and add it to `acts`.
    Its parameters by keyword are the fields of the body; what it returns is the result, or Done."""

    def declare(function: Function) -> Function:
        found = name or function.__name__
        body = _arguments_of(function, found, Body)
        fields = body.__struct_fields__
        result = get_type_hints(function)["return"]
        acts.append(
            Act(
                name=found,
                path=path,
                summary=_summary(function),
                action=action,
                body=body if fields else None,
                respond=lambda page, given: function(
                    page, **{each: getattr(given, each) for each in fields}
                ),
                result=Done if result is type(None) else result,
                status=status,
                scoped=scoped,
            )
        )
        return function

    return declare


def _summary(function: Callable[..., Any]) -> str:
    return (inspect.getdoc(function) or "").split("\n")[0]


def _arguments_of(
    function: Callable[..., Any], name: str, base: type[msgspec.Struct]
) -> type[msgspec.Struct]:
    """Return a struct of the parameters by keyword, with the fields of `base`."""
    hints = get_type_hints(function, include_extras=True)
    fields = [
        (each.name, hints[each.name], *([] if each.default is each.empty else [each.default]))
        for each in inspect.signature(function).parameters.values()
        if each.kind is each.KEYWORD_ONLY and each.name != "filters"
    ]
    return msgspec.defstruct(
        f"{name}_arguments",
        fields,
        bases=(base,),
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
    )


def names_in(path: str) -> list[str]:
    """Return the names of the parameters of a path."""
    return re.findall(r"{(\w+)}", path)


def json_of(result: Any, kind: Any) -> bytes:
    """Return the document of a result of this type as JSON."""
    return msgspec.json.encode(document(result, kind))


def _reader(operation: Read) -> Handler:
    def respond(page: Page) -> bytes:
        filters = None
        if operation.has_filter:
            filters = check_search(page.parts.settings.mask, filters_of(page.query))
        given = _arguments(page, operation)
        result = operation.call(operation.viewer(page), given, filters)
        return json_of(result, operation.result)

    def handle(page: Page) -> Response:
        in_path = names_in(operation.path)
        known = [each for each in operation.arguments.__struct_fields__ if each not in in_path]
        _check_names(page, [*known, "no_key"] if operation.has_filter else known)
        if not operation.is_shared:
            return Response(respond(page), media_type=JSON)
        scope = page.request.scope
        key = ("api", scope["path"], scope["query_string"], page.access.tenants)
        return Response(page.shared(key, lambda: respond(page)), media_type=JSON)

    return handle


def _arguments(page: Page, operation: Read) -> msgspec.Struct:
    """Return the arguments that a request gives, without a filter. An empty text stands for no
    value, except where a value is needed. Raise BadInput."""
    found: dict[str, Any] = {}
    wholes = _whole_numbers(operation.arguments)
    for field in msgspec.structs.fields(operation.arguments):
        if not operation.is_of_filter(field.name):
            text = page.request.path_params.get(field.name) or page.query.exact(field.name)
            if text or (text is not None and field.required):
                if field.name in wholes and not _WHOLE.fullmatch(text):
                    raise BadInput(f"{field.name}: use a whole number")
                found[field.name] = text
    try:
        return msgspec.convert(found, operation.arguments, strict=False)
    except msgspec.ValidationError as error:
        raise BadInput(f"these parameters cannot be used: {error}") from None


@cache
def _whole_numbers(arguments: type[msgspec.Struct]) -> frozenset[str]:
    """Return the arguments that are whole numbers. The library also takes 1e3, and null for none,
    by which a wrong value would select everything."""
    described = msgspec.inspect.type_info(arguments)
    assert isinstance(described, msgspec.inspect.StructType)
    return frozenset(field.name for field in described.fields if _has_whole(field.type))


def _has_whole(kind: msgspec.inspect.Type) -> bool:
    if isinstance(kind, msgspec.inspect.UnionType):
        return any(map(_has_whole, kind.types))
    if isinstance(kind, msgspec.inspect.Metadata):
        return _has_whole(kind.type)
    return isinstance(kind, msgspec.inspect.IntType)


def _actor(operation: Act) -> Handler:
    def act(page: Page) -> Response:
        _check_names(page, [])
        result = operation.respond(page, _body(page, operation.body)) or Done()
        page.parts.reads.clear()
        return Response(json_of(result, operation.result), operation.status, media_type=JSON)

    return act


def _check_names(page: Page, known: list[str]) -> None:
    """Raise BadInput for a parameter that the operation does not have: a filter with a wrong name
    would select other tasks."""
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
