"""Lengths and names that models and the readers of their tables share."""

from __future__ import annotations

MINUTE, HOUR, DAY = 60, 3600, 86_400  # seconds

WINDOWS = (MINUTE, HOUR, DAY)
"""Window sizes in seconds of the tables of gold with a row for each window."""

SLO_WINDOW = 300
"""Seconds of a window of gold.slo_counts and gold.slo."""

ALL = "*"
"""Value that stands for all queues, names or keys together."""

GROWTH = 1.02
"""Ratio of the upper bounds of two neighbouring buckets of gold.latency_hist. The value that
represents a bucket is within (1.02 - 1) / (1.02 + 1) < 1 % of every value in it."""
