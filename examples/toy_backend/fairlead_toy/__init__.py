"""A backend of Fairlead in a package of its own: tasks in the memory of one process."""
