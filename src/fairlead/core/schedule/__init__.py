"""The schedule of an ordered queue: tasks by time, one at a time for each ordering key."""
