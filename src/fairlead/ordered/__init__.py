"""Ordered queues: tasks of one ordering key run one at a time, at their time, in order, from a log
and a schedule.

intake (the log) -> a Partition for each that is owned -> persistence -> scheduler -> the node's
table, slots, executors -> completion. What a partition decides is in
`fairlead.core.schedule.schedule`.
"""
