"""Forms of the console, made from operations: one that makes each change, and one that asks a
person first how many tasks, tenants or messages are meant, and for values."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import inspect
from starlette.responses import Response

from fairlead.core.visible import visible
from fairlead.operate.actions import MOST_FIRST
from fairlead.operate.change_operations import CHANGING
from fairlead.operate.doctor.finding import counted
from fairlead.operate.operations import Field, Operation, converted, fields_of
from fairlead.operate.results import ChangedTasks, Done, TenantPreview
from fairlead.operate.store.actions import BulkAction
from fairlead.web.api.operations import called
from fairlead.web.api.sharded_operations import SHARDED
from fairlead.web.inputs import MOST_PATH_BYTES, MOST_QUERY_BYTES, BadInput, Inputs, own_path
from fairlead.web.page import Page
from fairlead.web.routing import Handler, ScreenRoute, action

_CHANGES = {each.name: each for each in (*CHANGING, *SHARDED) if not each.is_read}
_PREVIEWS = frozenset(each.preview for each in _CHANGES.values())
_NAMED = frozenset(each.named for each in _CHANGES.values())


def routes() -> list[ScreenRoute]:
    """Return the routes of all changes, each with the right and the scope of its operation."""
    found = []
    for each in _CHANGES.values():
        if each.name in _PREVIEWS:
            continue
        assert each.right is not None
        given: Any = {"action": each.right, "scoped": each.scoped}
        found.append(action(f"/do/{each.name}", _change(each), name=each.name, **given))
        if each.preview is not None or (each.name not in _NAMED and _is_of_ids(each)):
            name = f"confirm_{each.name}"
            found.append(action(f"/confirm/{each.name}", _confirm(each), name=name, **given))
    return found


def _change(operation: Operation) -> Handler:
    def change(page: Page) -> Response:
        """Make the change, and lead back to the screen of the form, or to the bulk action."""
        chosen, back = _chosen(page, operation), _back(page)
        given = sent(page.form, chosen.arguments)
        result = called(page, chosen, given)
        if isinstance(result, BulkAction):
            shown = page.link("action", id=result.id)
            return page.done(f"Bulk action {result.id}: {result.verb}.", shown)
        return page.done(_said(chosen, given, result), back)

    return change


def _confirm(operation: Operation) -> Handler:
    def confirm(page: Page) -> Response:
        """Show how many would be changed, and the first few. Changes nothing."""
        chosen = _chosen(page, operation)
        asked = [each for each in fields_of(chosen.arguments) if _is_asked(page, each)]
        return page.render(
            "confirm.html",
            operation=chosen,
            verb=operation.name.split("_")[0],
            **{"names": [], "tasks": [], "is_sample": False} | _meant(page, operation),
            asked=asked,
            queues=sorted(page.facts.settings) if any(f.name == "queue" for f in asked) else [],
            fields=page.form.pairs("csrf_token"),
            back=_back(page),
        )

    return confirm


def sent(form: Inputs, arguments: type[msgspec.Struct], prefix: str = "") -> Any:
    """Return the arguments that a form has. Those of a struct in it have its name and a point
    before theirs. `scope`: whether named things are meant (`selected`), or all that the struct
    selects (`matching`). An empty text stands for no value. Raise BadInput, InvalidTask."""
    is_matching = _is_matching(form)
    found: dict[str, Any] = {}
    for field in fields_of(arguments):
        name = prefix + field.name
        if isinstance(field.kind, inspect.StructType):
            if is_matching:
                found[field.name] = sent(form, field.kind.cls, f"{name}.")
        elif isinstance(field.kind, inspect.ListType):
            if not is_matching:
                found[field.name] = list(dict.fromkeys(form.many(name, may_be_empty=True)))
        elif field.name == "all":
            found[field.name] = is_matching
        elif (text := form.exact(name)) is not None:
            if text or prefix or (field.is_needed and not field.is_nullable):
                found[field.name] = text
            elif field.is_needed:
                found[field.name] = None
    known = {prefix + field.name for field in fields_of(arguments)}
    for name, _ in form.pairs() if prefix else ():
        if name.startswith(prefix) and name not in known:  # it would select more than is meant
            raise BadInput(f"no field {visible(name)}")
    if any(value == [] for value in found.values()):
        raise BadInput("nothing is selected: select some, or choose all that match")
    return converted(found, arguments)


def _back(page: Page) -> str:
    """Return the address of the screen from which a person came; the first one for an address that
    is not of the console."""
    given = own_path(page.form.text("back", MOST_PATH_BYTES + MOST_QUERY_BYTES) or "/")
    return given if given.startswith(f"{page.base}/") else f"{page.base}/"


def _is_of_ids(operation: Operation) -> bool:
    return "ids" in operation.arguments.__struct_fields__


def _meant(page: Page, operation: Operation) -> dict[str, Any]:
    """Return how many the change is about, and the first of them."""
    if operation.preview is None:
        ids = sent(page.form, operation.arguments).ids
        return {"number": counted(len(ids), "message"), "names": ids[:MOST_FIRST]}
    preview = _CHANGES[operation.preview]
    found = called(page, preview, sent(page.form, preview.arguments))
    if isinstance(found, TenantPreview):
        number = counted(found.number, "tenant")
        return {"number": number, "names": found.first, "is_sample": found.is_sample}
    more = "+" if found.is_more else ""
    number = f"{found.changed:,}{more} {'task' if found.changed == 1 else 'tasks'}"
    return {"number": number, "tasks": found.first}


def _is_matching(form: Inputs) -> bool:
    return form.one_of("scope", ["selected", "matching"], "selected") == "matching"


def _chosen(page: Page, operation: Operation) -> Operation:
    """Return the operation on the tasks that are selected, or the one on all that match."""
    is_named = operation.named is not None and not _is_matching(page.form)
    return _CHANGES[str(operation.named)] if is_named else operation


def _is_asked(page: Page, field: Field) -> bool:
    """Return whether a person still gives this argument."""
    of_choice = isinstance(field.kind, inspect.StructType | inspect.ListType | inspect.BoolType)
    return not of_choice and field.name != "version" and page.form.exact(field.name) is None


def _said(operation: Operation, given: msgspec.Struct, result: Any) -> str:
    """Return what was done, with the values that were given and those of the result."""
    what = operation.name.replace("_", " ")
    if isinstance(result, ChangedTasks):
        errors = [each.error for each in result.outcomes if each.error is not None]
        because = f", the first because {visible(errors[0])}" if errors else ""
        return f"{what}: changed {result.changed:,}, refused {result.refused:,}{because}"
    if getattr(result, "done", True) is False:
        return f"Nothing to do: {what}"
    parts = _parts(given)
    if not isinstance(result, Done) and len(result.__struct_fields__) == 1:
        parts += _parts(result)
    return f"Done: {what} ({', '.join(parts)})"


def _parts(struct: msgspec.Struct) -> list[str]:
    found = []
    for field in fields_of(type(struct)):
        value = getattr(struct, field.name)
        if field.is_needed or value != field.default:
            shown = len(value) if isinstance(value, list) else "none" if value is None else value
            found.append(f"{field.name.replace('_', ' ')} {visible(str(shown))}")
    return found
