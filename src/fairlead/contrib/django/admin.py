"""Tasks and attempts in Django's admin: lists with filters, and actions behind its permissions."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any, ClassVar

from django.contrib import admin, messages
from django.db import transaction
from django.utils.formats import localize
from django.utils.html import format_html, format_html_join
from django.utils.timezone import template_localtime

from fairlead.contrib.django.actions import management
from fairlead.contrib.django.configuration import Configuration
from fairlead.contrib.django.fields import InstantField
from fairlead.contrib.django.models import Attempt, Task
from fairlead.contrib.django.project import get_app
from fairlead.core.payload import unpack
from fairlead.errors import FairleadError
from fairlead.operate.change_operations import TASK_CHANGES
from fairlead.operate.changes import CHANGES

MOST_SHOWN = 4000
"""Greatest number of characters of the arguments on the page of a task."""

BATCH = 100
"""Number of tasks that an action changes in one transaction."""

MOST_MESSAGES = 10
"""Greatest number of tasks that an action refused and that its page names."""


@functools.cache
def _instant(name: str) -> Callable[[Any], str]:
    """Return a column that shows an InstantField as Django shows its own datetimes."""

    @admin.display(description=name.replace("_", " "), ordering=name, empty_value="-")
    def instant(row: Any) -> str | None:
        value = getattr(row, name)
        return None if value is None else str(localize(template_localtime(value)))

    instant.__name__ = name
    return instant


def _change_of(verb: str) -> Callable[..., None]:
    """Return the action of the admin that makes a change of tasks."""
    effect = TASK_CHANGES[verb][0].format("selected tasks", "their")

    @admin.action(description=effect.rstrip("."), permissions=["act"])
    def change(model_admin: Any, request: Any, queryset: Any) -> None:
        model_admin.change(request, queryset, verb)

    change.__name__ = verb
    return change


class ReadOnlyAdmin(admin.ModelAdmin):
    """An admin without forms: rows are looked at, and changed by actions only."""

    show_full_result_count = False
    list_per_page = 50

    def has_add_permission(self, request: Any) -> bool:
        """Return False: code submits tasks."""
        return False

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:
        """Return False: history is cleaned by workers."""
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        """Return False, so that every page shows its row without a form."""
        return False

    def get_readonly_fields(self, request: Any, obj: Any = None) -> list[Any]:
        """Return all fields of the page."""
        return [
            _instant(field.name) if isinstance(field, InstantField) else field.name
            for field in self.model._meta.fields
            if field.name not in ("payload", "payload_format")
        ]


@admin.register(Task)
class TaskAdmin(ReadOnlyAdmin):
    """Unfinished tasks. The actions need the permission `fairlead.change_task`."""

    list_display = (
        "short_name",
        "state",
        "queue",
        "priority",
        "fairness_key",
        _instant("submitted_at"),
        _instant("run_at"),
        "attempt",
        "error_type",
        "id",
    )
    list_filter = ("state", "queue", "name", "priority")
    search_fields = ("=id", "=fairness_key", "=ordering_key", "=unique_key", "name", "error_type")
    actions: ClassVar[list[Any]] = [*map(_change_of, ("retry", "resume", "cancel"))]
    exclude: ClassVar[list[str]] = ["payload", "payload_format"]

    def get_readonly_fields(self, request: Any, obj: Any = None) -> list[Any]:
        """Return all fields of the page, with arguments and attempts."""
        return [*super().get_readonly_fields(request, obj), "arguments", "attempts"]

    def get_fields(self, request: Any, obj: Any = None) -> list[Any]:
        """Return the same fields."""
        return self.get_readonly_fields(request, obj)

    def has_act_permission(self, request: Any) -> bool:
        """Return whether the person may use the actions."""
        return bool(request.user.has_perm("fairlead.change_task"))

    @admin.display(description="task", ordering="name")
    def short_name(self, task: Task) -> str:
        """Return the name without its module."""
        return str(task.name).rpartition(".")[2]

    @admin.display(description="arguments")
    def arguments(self, task: Task) -> str:
        """Return the arguments as JSON, through the mask."""
        mask = Configuration.load().mask_function
        try:
            decoded = json.loads(unpack(bytes(task.payload), task.payload_format))
        except (FairleadError, ValueError) as error:
            return f"cannot be read: {error}"
        try:
            shown = decoded if mask is None else mask(task.name, decoded)
            text = json.dumps(shown, indent=2, ensure_ascii=False, default=repr)
        except Exception as error:  # its text may have the secret
            text = f"cannot be shown: the mask raised {type(error).__name__}"
        return str(format_html("<pre>{}</pre>", text[:MOST_SHOWN]))

    @admin.display(description="attempts")
    def attempts(self, task: Task) -> str:
        """Return a line for each attempt."""
        found = Attempt.objects.filter(task_id=task.id).order_by("attempt")[:100]
        lines = (
            (a.attempt, _instant("finished_at")(a), a.outcome, a.error_type or "") for a in found
        )
        return str(format_html_join("", "{}. {}: {} {}<br>", lines) or "-")

    def change(self, request: Any, queryset: Any, verb: str) -> None:
        """Change the selected tasks, and say how many were changed and which were refused."""
        commands, change = management(), CHANGES[verb](actor=request.user.get_username())
        changed, refused = 0, list[str]()
        tasks = list(queryset.values_list("id", "version"))
        for start in range(0, len(tasks), BATCH):
            with transaction.atomic(using=get_app().alias):
                for task_id, version in tasks[start : start + BATCH]:
                    try:
                        with transaction.atomic(using=get_app().alias):
                            commands.apply(change, task_id, version)
                        changed += 1
                    except FairleadError as error:
                        refused.append(f"{task_id}: {error}")
        for text in refused[:MOST_MESSAGES]:
            self.message_user(request, text, messages.WARNING)
        if more := refused[MOST_MESSAGES:]:
            self.message_user(request, f"{len(more)} more were refused.", messages.WARNING)
        if changed:
            self.message_user(request, f"{changed} {change.done}.", messages.SUCCESS)


@admin.register(Attempt)
class AttemptAdmin(ReadOnlyAdmin):
    """The history of runs."""

    list_display = (
        "name",
        "outcome",
        "next_state",
        "queue",
        "fairness_key",
        "attempt",
        _instant("started_at"),
        _instant("finished_at"),
        "node",
        "error_type",
        "task_id",
    )
    list_filter = ("outcome", "next_state", "queue", "name")
    search_fields = ("=task_id", "=fairness_key", "name", "error_type")
