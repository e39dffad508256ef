"""Ordered queues: the tasks of one ordering key run one at a time, in order of their `run_at`.

A task passes these parts: the log -> `intake` -> its `OrderedPartition` -> `persistence` (which
writes it into the schedule) -> `scheduler` -> trigger table, slots and executors of the node ->
`completion`. `fairlead.core.schedule.schedule` makes the decisions of a partition without I/O.
"""
