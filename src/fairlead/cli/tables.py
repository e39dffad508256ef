"""Results of operations as tables for people, made from their documents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import msgspec

from fairlead.cli.output import as_table, say

_COLUMNS = {
    "TaskRecord": "id state queue name fairness_key tries run_at error_text",
    "Tenant": "tenant backlog processing waiting errors waits share_got share_due queues",
    "TenantQueue": "queue backlog processing waiting errors waits share_got share_due weight limit"
    " is_paused",
    "QueueNumbers": "queue backlog processing waiting errors oldest_ready_at waits nodes is_paused",
    "AttemptRecord": "attempt outcome next_state started_at finished_at node error_text",
    "BulkAction": "id verb actor asked_at state is_stopping looked changed refused where error",
    "AuditEntry": "id at actor verb outcome task_id subject action queue fairness_key details",
    "NodeView": "node is_alive blocked_loop started_at heartbeat_at partitions slots version python"
    " queues",
    "Incident": "id kind subject details since queue name",
    "ScheduledTask": "key task attempt retry_at",
    "PeriodicRecord": "name queue cron timezone catch_up passed_at paused",
    "KeySetting": "fairness_key weight slots",
    "LimitView": "name task policy is_cluster_wide holders trouble",
}
"""Columns of records that have too many fields for a table, by their kind."""
_CELLS: dict[str, Callable[[Any], str]] = {
    "Estimate": lambda each: f"{'' if each.is_exact else '~'}{each.number:,}",
    "Counted": lambda each: f"{each.number:,}{'+' if each.at_least else ''}",
    "Waits": lambda each: " / ".join(
        _cell(wait) for wait in (each.p50, each.p99) if wait is not None
    ),
    "Level": lambda each: f"({each.pass_}, {each.id})",
    "TaskFilter": lambda each: ", ".join(
        f"{name}={_cell(value)}"
        for name in each.__struct_fields__
        if name != "older_than" and (value := getattr(each, name)) is not None
    ),
    "ArgumentFilter": lambda each: f"{'.'.join(each.path)}={each.value}",
}
"""Records that are one cell."""
_WITHOUT = {"owner": "nobody", "tenant": "(no key)"}
"""Cells of columns that say so when there is nothing."""
_MOST_OF_AN_ERROR = 60
"""Greatest number of characters of an error in a table; the commands that show a record have it
whole."""
_PAGES = frozenset({"TenantPage", "QueueList", "TaskPage"})
"""Results that are a list with facts about it, beside those with `next`."""


def show(value: Any, title: str = "") -> None:
    """Print a document: a list as a table, a record as its fields and then its lists."""
    if isinstance(value, list):
        _show_list(value, title)
        return
    parts = {name: getattr(value, name) for name in value.__struct_fields__}
    if type(value).__name__ in _PAGES or "next" in parts:
        _show_list(next(each for each in parts.values() if isinstance(each, list)), title)
        return
    plain = [name for name, each in parts.items() if _is_plain(each)]
    texts = {name: "no" if parts[name] is False else _cell(parts[name]) for name in plain}
    texts = {
        name: text.strip()
        for name, text in texts.items()
        if text and not (name.startswith("more_") and text == "0")
    }
    if title and texts:
        say(f"\n{title}")
    as_table(("", ""), [(_name(name), text) for name, text in texts.items() if "\n" not in text])
    for name, text in texts.items():
        if "\n" in text:
            say(f"{_name(name)}: {text}")
    for name, each in parts.items():
        if name not in plain and each:
            show(each, f"{title} {_name(name)}".strip())


def _show_list(rows: Sequence[Any], title: str) -> None:
    if title:
        say(f"\n{title}")
    if not rows:
        say("none")
    elif type(rows[0]).__name__ not in _COLUMNS and any(map(_has_lists, rows)):
        for row in rows:
            show(row)
    else:
        cells = [_cells(row) for row in rows]
        names = [name for name in cells[0] if any(row.get(name) for row in cells)]
        as_table(
            [_name(name) for name in names],
            [[row.get(name) for name in names] for row in cells],
        )


def _cells(row: Any) -> dict[str, str]:
    """Return the cells of a row by the names of its columns; those of a small record in it are
    columns too."""
    names = _COLUMNS.get(type(row).__name__, "").split() or row.__struct_fields__
    found: dict[str, str] = {}
    for name in names:
        value = getattr(row, name)
        if name in _WITHOUT and not value:
            found[name] = _WITHOUT[name]
        elif _is_plain(value):
            text = _cell(value).split("\n")[0]
            found[name] = text[:_MOST_OF_AN_ERROR] if name == "error_text" else text
        elif isinstance(value, msgspec.Struct):
            found |= _cells(value)
        elif len(value) == 1:  # the only queue of a tenant
            found |= {each: text for each, text in _cells(value[0]).items() if each not in found}
    return found


def _has_lists(row: Any) -> bool:
    return any(
        isinstance(value, list) and not _is_plain(value) and value
        for value in (getattr(row, name) for name in row.__struct_fields__)
    )


def _is_plain(value: Any) -> bool:
    """Return whether a value is one cell: no record but a number with a remark, no list of
    records."""
    if isinstance(value, list):
        return not any(isinstance(each, msgspec.Struct) for each in value)
    return not isinstance(value, msgspec.Struct) or type(value).__name__ in _CELLS


def _cell(value: Any) -> str:
    """Return a value as text; nothing for None and False."""
    if type(value).__name__ in _CELLS:
        return _CELLS[type(value).__name__](value)
    match value:
        case None | False:
            return ""
        case True:
            return "yes"
        case datetime():
            return f"{value:%Y-%m-%d %H:%M:%S}"
        case float():
            return f"{value:,.4g}"
        case list():
            return ", ".join(map(_cell, value))
        case dict():
            return ", ".join(f"{name}={_cell(each)}" for name, each in value.items())
        case _:
            return str(value)


def _name(field: str) -> str:
    return field.removeprefix("is_").removesuffix("_at").replace("_", " ")
