"""Lists of columns in statements, made from the columns and the nouns of the model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from fairlead.model import ClaimedTask, Incident, TaskRecord
from fairlead.model.columns import ATTEMPTS, ENDED, KEPT, NEW, TASKS
from fairlead.model.history import ATTEMPT_FIELDS, EVENT_FIELDS
from fairlead.model.task_facts import RunFact

_READY = "ready_seq", "id", "version", "name", "fairness_key", "weight", "ordering_key", "order_at"
"""Columns of a trigger, as the reader of its lane takes them."""

_LIST = re.compile(r"\{(\w+)(?: (\d+))?\}")


def with_lists(sql: str, dialect: str) -> str:
    """Return a statement with lists of columns in place of their names in braces. A name may have
    the number of its first parameter, or of its first element of a JSON array, as in
    `{values 3}`."""

    def text(found: re.Match[str]) -> str:
        items = LISTS[dialect].get(found[1])
        if items is None:
            return found[0]
        return ", ".join(item.format(n) for n, item in enumerate(items, int(found[2] or 0)))

    return _LIST.sub(text, sql)


def _read(names: Iterable[str], prefix: str, forms: dict[str, str]) -> list[str]:
    return [
        f"{forms[name].format(prefix + name)} AS {name}" if name in forms else prefix + name
        for name in names
    ]


def _lists(parameter: str, element: str, forms: dict[str, str]) -> dict[str, Sequence[str]]:
    """Return the lists of a dialect. `parameter` and `element` stand for a value with its type,
    `forms` for columns that a reader gets in another form."""
    runs = [column.name for column in KEPT]
    known = {*forms, *(column.name for column in TASKS)}
    return {
        "new": [column.name for column in NEW],
        "values": [parameter.replace("TYPE", column.type) for column in NEW],
        "arrays": [parameter.replace("TYPE", f"{column.type}[]") for column in NEW],
        # In an array, an empty text stands for NULL.
        "given": [f"nullif({c.name}, '') AS {c.name}" if c.may_be_null else c.name for c in NEW],
        "claimed": _read(filter(known.__contains__, ClaimedTask.__struct_fields__), "", forms),
        "run": runs,
        "run_of_t": [f"t.{name}" for name in runs],
        "ended": [column.name for column in ENDED],
        "ended_in_j": [f"{element.replace('TYPE', c.type)} AS {c.name}" for c in ENDED],
        "attempt": [column.name for column in ATTEMPTS],
        "attempt_in_j": [f"{element.replace('TYPE', c.type)} AS {c.name}" for c in ATTEMPTS],
        "history": _read(ATTEMPT_FIELDS, "a.", forms),
        "event": _read(EVENT_FIELDS, "e.", forms),
        "task": _read(
            TaskRecord.__struct_fields__, "t.", forms | {"payload_bytes": "length(t.payload)"}
        ),
        "run_fact": RunFact._fields,
        "ready": _read(_READY, "t.", forms | {"order_at": "coalesce({}, 0)"}),
        "incident": [name for name in Incident.__struct_fields__ if name != "task"],
    }


LISTS = {
    "postgres": _lists(
        "${}::TYPE",
        "(j ->> {})::TYPE",
        {"id": "{}::text", "task_id": "{}::text", "xid": "{}::text::bigint"},
    ),
    "sqlite": _lists("?{}", "j.value ->> {}", {"xid": "0", "row": "seq"}),
}
"""Items of each list, by dialect and name. Braces in an item stand for its number."""
