"""Table of the slots that a queue needs in each hour of the next week. `fairlead pipeline capacity`
writes the table; the build does not."""

from __future__ import annotations

FIRST_DEFERRABLE_PRIORITY = 7
"""Most urgent priority, from 0 to 9, whose tasks may be deferred to a quieter hour."""
