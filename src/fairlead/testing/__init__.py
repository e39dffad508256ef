"""Helpers for tests of your tasks.

`open_kit`, or the fixture `fairlead_kit` of pytest, gives a `Kit`: an application on a database for
one test, whose tasks are drained on a real node, listed and asserted, on a clock that travels.
`running`, `drain` and `settled` run a node in the event loop of a test, for tests of workers.
"""

from __future__ import annotations

from fairlead.testing.clock import TravelClock
from fairlead.testing.kit import Kit, open_kit
from fairlead.testing.nodes import drain, running, settled
from fairlead.testing.submitted import SubmittedTask

__all__ = ["Kit", "SubmittedTask", "TravelClock", "drain", "open_kit", "running", "settled"]
