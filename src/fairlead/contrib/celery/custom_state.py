"""Custom states of runs, which `update_state` reports: they are the progress of the run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import fairlead
from fairlead.contrib.celery.exceptions import ImproperlyConfigured
from fairlead.contrib.celery.messages import from_json, to_json
from fairlead.contrib.celery.request import Context
from fairlead.declare.notes import MOST_NOTE_BYTES, MOST_WORK

_MARK = "celery "
"""Beginning of the note of a progress that is a custom state."""


class CustomState(NamedTuple):
    """A state that `update_state` reported."""

    name: str
    meta: Any


def report(request: Context, task_id: str | None, state: str | None, meta: Any) -> None:
    """Report a custom state of the run. Raise ImproperlyConfigured for another task than the one
    that runs here, for a state of several words, and for more than fits."""
    current = fairlead.current_task()
    request.reported = (state, meta)
    if request.is_eager:
        return  # its end replaces the state before anybody can read it
    if current is None or request.id is None or task_id not in (None, request.id):
        raise ImproperlyConfigured(
            f"update_state(task_id={task_id!r}): only the run itself reports its state; call it in"
            " the task, without task_id"
        )
    if not state or len(state.split()) != 1:
        raise ImproperlyConfigured(f"update_state(state={state!r}): use one word")
    note = f"{_MARK}{state} {json.dumps(to_json('meta of update_state', meta))}"
    if len(note) > MOST_NOTE_BYTES:
        raise ImproperlyConfigured(
            f"update_state: state and meta have {len(note):,} bytes of JSON, more than"
            f" {MOST_NOTE_BYTES:,}; report counts, and keep the rest in a table of your own"
        )
    given = meta if isinstance(meta, Mapping) else {}
    current.progress(
        _amount(given.get("current", given.get("done"))) or 0, _amount(given.get("total")), note
    )


def reported(note: str | None) -> CustomState | None:
    """Return the custom state of the note of a progress; None for another note."""
    if note is None or not note.startswith(_MARK):
        return None
    name, _, meta = note.removeprefix(_MARK).partition(" ")
    try:
        return CustomState(name, from_json(json.loads(meta)))
    except ValueError:
        return None


def _amount(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and math.isfinite(value) and 0 <= value <= MOST_WORK else None
