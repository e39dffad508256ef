"""Tasks in the memory of one process: a backend of Fairlead from outside."""
