"""Arguments of a task between the program that submits it and the one that runs it."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import StrEnum
from typing import Any, Literal, NamedTuple, TypedDict

import msgspec
import pytest

from fairlead import App, ConfigurationError, InvalidTask, TaskFailed, current_task
from fairlead.declare.arguments import Arguments
from fairlead.testing import open_kit


@dataclass
class Order:
    number: int


class Line(msgspec.Struct):
    article: str


class Node(TypedDict):
    inner: list[Node]


class Content(TypedDict):
    inner: Any


class Point(NamedTuple):
    x: int


def pay(order: int, amount: int = 10, note: str | None = None, *, tags: list[str] = []) -> None: ...  # noqa: B006 - as users write it


def pay_later(
    order: int,
    amount: int = 20,
    note: str | None = "late",
    *,
    tags: list[str] = ["later"],  # noqa: B006
) -> None: ...


def run_with(
    function: Callable[..., Any], encoded: bytes
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with which a worker calls another version of the function."""
    return Arguments(function, "pay").decode(encoded)


def test_a_given_argument_reaches_a_worker_and_one_left_out_has_its_default_there() -> None:
    given = {"order": 1, "amount": 10, "note": None, "tags": []}
    encode = Arguments(pay, "pay").encode
    assert run_with(pay_later, encode((), given)) == ((), given)
    later = {"order": 1, "amount": 20, "note": "late", "tags": ["later"]}
    assert run_with(pay_later, encode((), {"order": 1})) == ((), later)


def test_defaults_of_any_type_are_left_out() -> None:
    def many(a=1, b: Any = 2, c: Literal["x"] = "x", d: Node | None = None) -> None: ...  # type: ignore[no-untyped-def]

    many.__annotations__["d"] = Node | None
    arguments = Arguments(many, "many")
    assert arguments.encode((), {}) == b"{}"
    assert arguments.encode((1,), {"d": {"inner": []}}) == b'{"a":1,"d":{"inner":[]}}'


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Order, Order("seven")),  # type: ignore[arg-type]
        (list[Order], [Order(1), Order("seven")]),  # type: ignore[arg-type]
        (Line, Line(7)),  # type: ignore[arg-type]
        (dict[str, Point], {"a": Point("b")}),  # type: ignore[arg-type]
        (Order | None, Order(None)),  # type: ignore[arg-type]
    ],
)
def test_an_object_with_a_field_of_another_type_is_refused_at_the_submit(
    kind: Any, value: object
) -> None:
    def ship(what: Any) -> None: ...

    ship.__annotations__["what"] = kind
    with pytest.raises(InvalidTask, match="task 'ship': Expected"):
        Arguments(ship, "ship").encode((value,), {})


class Color(StrEnum):
    RED = "red"


class Box(msgspec.Struct):
    content: Any


CHANGED = [
    ({1: "a"}, "a key of type int"),
    ({Color.RED: "a"}, "a key of type Color"),
    (date(2026, 11, 29), "a value of type date"),
    (Decimal("1.10"), "a value of type Decimal"),
    (b"a", "a value of type bytes"),
    ({"a"}, "a value of type set"),
    (Color.RED, "a value of type Color"),
    ((1, 2), "a value of type tuple"),
    (Order(1), "a value of type Order"),
    (OrderedDict(a=1), "a value of type OrderedDict"),
    (object(), "a value of type object"),
]
"""Values that JSON does not carry as they are, and how errors name them."""


changed = pytest.mark.parametrize(("value", "change"), CHANGED, ids=[each for _, each in CHANGED])


@changed
def test_a_value_that_json_would_change_is_refused_where_no_annotation_says_its_type(
    value: object, change: str
) -> None:
    def ship(what, more: Any = None) -> None: ...  # type: ignore[no-untyped-def]

    places: dict[Any, object] = {
        Any: value,
        list: [{"a": value}],
        dict: {"a": [value]},
        dict[str, object]: {"a": value},
        list[Any] | None: [value],
        tuple[int, Any]: (1, value),
        Box: Box(value),
        Content: {"inner": value},
    }
    for kind, given in places.items():
        ship.__annotations__["what"] = kind
        with pytest.raises(InvalidTask, match=f"'ship': JSON would change {change} in `what`: "):
            Arguments(ship, "ship").encode((given,), {})


@changed
def test_a_result_or_a_checkpoint_that_json_would_change_fails_the_run(
    sqlite_url: str, value: object, change: str
) -> None:
    app = App(sqlite_url)

    @app.task(keep_result=True)
    def ship():  # type: ignore[no-untyped-def]
        return [value]

    @app.task
    def note() -> None:
        current_task().checkpoint(value)  # type: ignore[union-attr]

    with open_kit(app) as kit:
        ship.submit()
        with pytest.raises(TaskFailed, match=f"JSON would change {change} in `return`: annotate"):
            kit.drain()
        note.submit()
        with pytest.raises(InvalidTask, match=f"checkpoint .*JSON would change {change}: use"):
            kit.drain()


def test_a_value_of_the_annotated_type_is_sent_as_it_is() -> None:
    def ship(what: dict[int, list[Any]], more: Sequence[Color], box: list[Box]) -> None: ...

    arguments = Arguments(ship, "ship")
    given = ({1: [{"a": [1, None, 2.5]}]}, [Color.RED], [Box(["a", True])])
    run_with, _ = arguments.decode(arguments.encode(given, {}))
    assert run_with[:2] == given[:2] and run_with[2][0].content == ["a", True]


def test_an_annotation_for_type_checkers_only_is_refused_where_a_value_needs_it() -> None:
    def ship(order: int) -> None: ...

    ship.__annotations__["return"] = "Parcel"  # imported if TYPE_CHECKING
    App().task(ship)
    with pytest.raises(ConfigurationError, match="'Parcel' is not defined; import it at run time"):
        App().task(keep_result=True)(ship)


def test_a_task_shows_the_signature_and_the_names_of_its_function() -> None:
    task: Any = App().task(name="pay now")(pay)
    assert inspect.signature(task) == inspect.signature(pay)
    assert (task.__module__, task.__qualname__, task.__doc__) == (__name__, "pay", pay.__doc__)
    assert inspect.signature(task.options(priority=1)) == inspect.signature(pay)
