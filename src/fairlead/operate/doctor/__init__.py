"""The doctor: find wrong configuration, and say which tasks wait and why."""

from fairlead.operate.doctor.examine import examine
from fairlead.operate.doctor.explain import Explanation, Position, Reason, explanation
from fairlead.operate.doctor.finding import Finding, Severity

__all__ = [
    "Explanation",
    "Finding",
    "Position",
    "Reason",
    "Severity",
    "examine",
    "explanation",
]
