"""Read-only models over the tables of Fairlead, for queries and the admin.

Tasks change by `enqueue` and by the actions of the admin, never by these models.
"""

from __future__ import annotations

from typing import Any, NoReturn

from django.db import models

from fairlead.contrib.django.configuration import Configuration
from fairlead.contrib.django.fields import IdField, InstantField
from fairlead.errors import NotAllowed
from fairlead.model import Outcome, State

READ_ONLY = "the tables of Fairlead are read-only here: use enqueue, or the actions of the admin"


def _refuse(*args: Any, **kwargs: Any) -> NoReturn:
    raise NotAllowed(READ_ONLY)


class ReadOnlyQuerySet(models.QuerySet):
    """A query set without changes. Each method that would write raises NotAllowed."""

    update = delete = create = bulk_create = bulk_update = _refuse
    get_or_create = update_or_create = _raw_delete = _refuse


class ReadOnlyManager(models.Manager.from_queryset(ReadOnlyQuerySet)):  # type: ignore[misc]
    """Manager of read-only rows, in the database in FAIRLEAD['DATABASE']."""

    def get_queryset(self) -> Any:
        """Return the query set of all rows."""
        return super().get_queryset().using(Configuration.load().database)


class ReadOnlyModel(models.Model):
    """A row of Fairlead's. `save` and `delete` raise NotAllowed."""

    objects = ReadOnlyManager()

    class Meta:
        """Options of both models."""

        abstract = True

    save = delete = save_base = _refuse
    asave = adelete = _refuse


def _choices(states: Any) -> list[tuple[str, str]]:
    return [(each.value, each.value.replace("_", " ").capitalize()) for each in states]


class Task(ReadOnlyModel):
    """An unfinished task: one that waits, runs, or ended in ERROR and asks for a person."""

    id = IdField(primary_key=True, max_length=36)
    name = models.CharField(max_length=200)
    queue = models.CharField(max_length=200)
    state = models.CharField(
        max_length=20,
        choices=_choices([State.WAITING, State.SUBMITTED, State.PROCESSING, State.ERROR]),
    )
    version = models.IntegerField()
    attempt = models.IntegerField()
    tries = models.IntegerField()
    priority = models.SmallIntegerField(help_text="0 (first) to 9 (last)")
    fairness_key = models.CharField(max_length=1024)
    weight = models.FloatField()
    ordering_key = models.CharField(max_length=1024, null=True)
    unique_key = models.CharField(max_length=1024, null=True)
    submitted_at = InstantField()
    run_at = InstantField()
    claimed_at = InstantField(null=True)
    node = models.CharField(max_length=200, null=True)
    error_type = models.CharField(max_length=300, null=True)
    error_text = models.TextField(null=True)
    payload_format = models.CharField(max_length=20)
    payload = models.BinaryField()

    class Meta:
        """Options of the model."""

        managed = False
        db_table = "fairlead_tasks"
        default_permissions = ("view", "change")
        ordering = ("-id",)

    def __str__(self) -> str:
        return f"{self.name} {self.id}"


class Attempt(ReadOnlyModel):
    """One run of a task, or its end without a run."""

    seq = models.BigIntegerField(primary_key=True)
    task_id = IdField(max_length=36)
    name = models.CharField(max_length=200)
    queue = models.CharField(max_length=200)
    attempt = models.IntegerField()
    tries = models.IntegerField()
    priority = models.SmallIntegerField(help_text="0 (first) to 9 (last)")
    fairness_key = models.CharField(max_length=1024)
    ordering_key = models.CharField(max_length=1024, null=True)
    unique_key = models.CharField(max_length=1024, null=True)
    submitted_at = InstantField()
    started_at = InstantField(null=True)
    finished_at = InstantField()
    outcome = models.CharField(max_length=20, choices=_choices(Outcome))
    next_state = models.CharField(max_length=20, choices=_choices(State))
    node = models.CharField(max_length=200, null=True)
    error_type = models.CharField(max_length=300, null=True)
    error_text = models.TextField(null=True)

    class Meta:
        """Options of the model."""

        managed = False
        db_table = "fairlead_attempts"
        default_permissions = ("view",)
        ordering = ("-seq",)

    def __str__(self) -> str:
        return f"{self.name} {self.task_id}, attempt {self.attempt}"
