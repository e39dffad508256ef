"""Bulk submit: very many tasks in one named submission. A repeated submission changes nothing.

Any number of processes check rows and stage the tasks in one table, and the driver publishes them
in one transaction. Tasks that a crashed process staged, or that were staged twice, stay
unpublished.
"""
