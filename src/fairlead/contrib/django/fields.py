"""Model fields for the columns of Fairlead's tables."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import models
from django.utils import timezone

from fairlead.clock import to_datetime, to_micros
from fairlead.contrib.django.runs import local

_NO_ID = str(UUID(int=0))


class InstantField(models.BigIntegerField):
    """A datetime that the database keeps in microseconds since the epoch."""

    def from_db_value(self, value: int | None, *given: Any) -> Any:
        """Return the datetime of a stored number."""
        return None if value is None else local(to_datetime(value))

    def get_prep_value(self, value: Any) -> Any:
        """Return the number of a datetime."""
        if isinstance(value, datetime):
            return to_micros(timezone.make_aware(value) if timezone.is_naive(value) else value)
        return super().get_prep_value(value)


class IdField(models.CharField):
    """The id of a task: a uuid in PostgreSQL, a text in SQLite."""

    def get_prep_value(self, value: Any) -> Any:
        """Return an id as a text; for a text that no task can have as its id, one that none has."""
        text = super().get_prep_value(value)
        try:
            return text if text is None else str(UUID(text))
        except ValueError:
            return _NO_ID

    def from_db_value(self, value: Any, *given: Any) -> Any:
        """Return the id as a text."""
        return None if value is None else str(value)
