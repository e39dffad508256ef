"""Helpers of Celery that projects import."""

from fairlead.contrib.celery.messages import uuid

__all__ = ["uuid"]
