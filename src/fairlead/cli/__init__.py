"""The command line: one module for each group of commands. Exit codes: 0 done, 1 the work failed, 2
wrong use."""

from fairlead.cli.main import main

__all__ = ["main"]
