"""States of tasks as Celery names them."""

from fairlead.contrib.celery.missing import lookup

PENDING = "PENDING"
STARTED = "STARTED"
SUCCESS = "SUCCESS"
FAILURE = "FAILURE"
REVOKED = "REVOKED"
RETRY = "RETRY"
READY_STATES = frozenset({SUCCESS, FAILURE, REVOKED})
__getattr__ = lookup(__name__)
