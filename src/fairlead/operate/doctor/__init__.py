"""The doctor: find wrong configuration, and say which tasks wait and why."""

from fairlead.operate.doctor.examine import examine
from fairlead.operate.doctor.explain import explain
from fairlead.operate.doctor.finding import Finding, Severity

__all__ = ["Finding", "Severity", "examine", "explain"]
