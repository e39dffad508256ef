"""The nouns of Fairlead as data: tasks, triggers, lanes, attempts.

Instants are integers: microseconds since 1970-01-01 UTC, in memory and in every store, so that a
time is compared, stored and exported without rounding. Only the public surface uses aware
datetimes. Ids are the canonical text of a UUIDv7: they sort by time of submission and read the same
in SQL, logs and JSON.
"""

from fairlead.model.argument import ArgumentFilter
from fairlead.model.attempt import AttemptRecord, Finish
from fairlead.model.fields import MAX_WEIGHT, MIN_WEIGHT, PRIORITIES
from fairlead.model.incident import (
    ABOUT_TASKS,
    INCIDENT_ENDS,
    INCIDENT_LINGERS,
    INCIDENT_REPORTED,
    WATCHED,
    Incident,
    IncidentKind,
    IncidentReport,
)
from fairlead.model.keys import (
    BEFORE_ALL,
    PATH_SEPARATOR,
    Feed,
    LaneKey,
    PartitionKey,
    TaskKey,
    tenant_of,
)
from fairlead.model.lane import LaneRecord, read_lanes
from fairlead.model.run_notes import LogLine, Progress, ProgressReport, RunNotes
from fairlead.model.scheduled import NEVER, RunEnd, ScheduledTask, ScheduleRecord
from fairlead.model.states import FINAL_STATES, Outcome, State, TriggerPath
from fairlead.model.task import (
    DEFAULT_PRIORITY,
    DEFAULT_WEIGHT,
    ClaimedTask,
    NewTask,
    PayloadFormat,
    Submitted,
    TaskRecord,
)
from fairlead.model.trigger import LOWEST, Level, Trigger

__all__ = [
    "State",
    "FINAL_STATES",
    "Outcome",
    "TriggerPath",
    "PartitionKey",
    "LaneKey",
    "Feed",
    "TaskKey",
    "BEFORE_ALL",
    "PATH_SEPARATOR",
    "tenant_of",
    "DEFAULT_PRIORITY",
    "PRIORITIES",
    "DEFAULT_WEIGHT",
    "MIN_WEIGHT",
    "MAX_WEIGHT",
    "PayloadFormat",
    "NewTask",
    "Submitted",
    "ClaimedTask",
    "TaskRecord",
    "ArgumentFilter",
    "IncidentKind",
    "IncidentReport",
    "Incident",
    "ABOUT_TASKS",
    "WATCHED",
    "INCIDENT_ENDS",
    "INCIDENT_LINGERS",
    "INCIDENT_REPORTED",
    "Level",
    "LOWEST",
    "Trigger",
    "LaneRecord",
    "read_lanes",
    "Finish",
    "AttemptRecord",
    "LogLine",
    "Progress",
    "ProgressReport",
    "RunNotes",
    "NEVER",
    "ScheduledTask",
    "RunEnd",
    "ScheduleRecord",
]
