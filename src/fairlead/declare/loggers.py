"""Loggers of Fairlead, whatever the logging settings of an application say about others."""

from __future__ import annotations

import logging


def enable() -> None:
    """Enable the logger `fairlead` and those below it. `logging.config` disables all loggers that
    exist, unless told otherwise. A level still silences ours."""
    for name, logger in logging.root.manager.loggerDict.items():
        if isinstance(logger, logging.Logger) and name.partition(".")[0] == "fairlead":
            logger.disabled = False
