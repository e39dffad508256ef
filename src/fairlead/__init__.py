"""Fairlead: durable, fair task queues for services with many tenants."""

from fairlead.app import App
from fairlead.core.limits.cluster_limits import ClusterLimit, ClusterRateLimit
from fairlead.core.limits.limit_tree import LimitTree
from fairlead.core.limits.limits import ConcurrencyPolicy, Full, Limit, RateLimit
from fairlead.core.policies.processing import Processing, ProcessingPolicy
from fairlead.core.policies.retry import Delays, Exponential, Fixed, NoRetry, RetryPolicy
from fairlead.declare.current import ContextFilter, CurrentTask, current_task
from fairlead.declare.gathering import as_completed, as_completed_async, gather, gather_async
from fairlead.declare.handle import TaskHandle
from fairlead.declare.handler import RunInterceptor as Interceptor
from fairlead.declare.task import Draft, Task
from fairlead.errors import (
    ConfigurationError,
    FairleadError,
    InvalidDelay,
    InvalidTask,
    LifespanFailed,
    NotAllowed,
    ResultNotKept,
    ResultTimeout,
    Retry,
    SchemaMismatch,
    Snooze,
    StaleVersion,
    StoreUnavailable,
    TaskFailed,
    TaskTimeout,
    UnknownQueue,
    UnknownTask,
)
from fairlead.model import Incident, IncidentKind, Outcome, State
from fairlead.version import VERSION

__version__ = VERSION

__all__ = [
    "App",
    "ClusterLimit",
    "ClusterRateLimit",
    "ConcurrencyPolicy",
    "ConfigurationError",
    "ContextFilter",
    "CurrentTask",
    "Delays",
    "Draft",
    "Exponential",
    "FairleadError",
    "Fixed",
    "Full",
    "Interceptor",
    "InvalidDelay",
    "Incident",
    "IncidentKind",
    "InvalidTask",
    "LifespanFailed",
    "Limit",
    "LimitTree",
    "NoRetry",
    "NotAllowed",
    "Outcome",
    "Processing",
    "ProcessingPolicy",
    "RateLimit",
    "ResultNotKept",
    "ResultTimeout",
    "Retry",
    "RetryPolicy",
    "SchemaMismatch",
    "Snooze",
    "StaleVersion",
    "State",
    "StoreUnavailable",
    "Task",
    "TaskFailed",
    "TaskHandle",
    "TaskTimeout",
    "UnknownQueue",
    "UnknownTask",
    "as_completed",
    "as_completed_async",
    "current_task",
    "gather",
    "gather_async",
]
