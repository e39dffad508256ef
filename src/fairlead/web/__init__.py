"""The web console: an ASGI application that shows queues, tasks and tenants, and changes them.

The extra `fairlead[web]` installs what it needs.
"""

from __future__ import annotations

from fairlead.web.access import ACTIONS, Access
from fairlead.web.application import console

__all__ = ["ACTIONS", "Access", "console"]
