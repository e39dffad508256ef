"""Helpers of Celery that projects import."""

from fairlead.contrib.celery.utils.ids import gen_unique_id, uuid

__all__ = ["gen_unique_id", "uuid"]
