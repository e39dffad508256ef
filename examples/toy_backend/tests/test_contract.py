"""The contract suites of the three ports of a task store, run on the toy."""

from __future__ import annotations

import pytest
from fairlead_toy.store import ToyStore

from fairlead.testing.contract.claims import *  # noqa: F403
from fairlead.testing.contract.insertion import *  # noqa: F403
from fairlead.testing.contract.lane_reads import *  # noqa: F403


@pytest.fixture
def store() -> ToyStore:
    return ToyStore("toy://contract")
