"""Windows of the tables of gold, and the first columns of the tables with a row for each window."""

from __future__ import annotations

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from fairlead.pipeline.schema import columns_in

MINUTE, HOUR, DAY = 60, 3600, 86_400  # seconds

WINDOWS = (MINUTE, HOUR, DAY)
"""Window sizes in seconds. 86,400 stands for a business day, also one of 23 or 25 hours; no window
crosses its end."""

ALL = "*"
"""Value that stands for all queues, names or keys together."""

OF_WINDOW = columns_in(
    """
    window_start timestamp start of the window
    window_s     int       length of the window in seconds: 60, 3600, or 86400 for a business day of
                           [time]
    queue        string    queue of the tasks
    """,
)
"""First columns of the tables with a row for each window of a queue."""


def window_of_utc(zone: ZoneInfo, year: int) -> int:
    """Return the seconds of the largest windows of gold that lie within one date and hour of UTC: a
    day of another zone does not, nor does an hour where the zone is half an hour off."""
    if zone.key == "UTC":
        return DAY
    whole = timedelta(hours=1)
    offsets = (datetime(year, month, 1, tzinfo=zone).utcoffset() for month in (1, 7))
    return MINUTE if any((offset or whole) % whole for offset in offsets) else HOUR
