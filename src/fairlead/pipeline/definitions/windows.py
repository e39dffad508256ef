"""Windows of the tables of gold, and the first columns of the tables with a row for each window."""

from __future__ import annotations

from fairlead.pipeline.schema import columns_in

MINUTE, HOUR, DAY = 60, 3600, 86_400  # seconds

WINDOWS = (MINUTE, HOUR, DAY)
"""Window sizes in seconds."""

ALL = "*"
"""Value that stands for all queues, names or keys together."""

OF_WINDOW = columns_in(
    """
    window_start timestamp start of the window
    window_s     int       length of the window in seconds: 60, 3600, or 86400 for a day (UTC)
    queue        string    queue of the tasks
    """,
)
"""First columns of the tables with a row for each window of a queue."""
