"""The contract suite of task stores, run on the toy."""

from __future__ import annotations

import pytest
from fairlead_toy.store import ToyStore

from fairlead.testing.contract.task_store import *  # noqa: F403


@pytest.fixture
def store() -> ToyStore:
    return ToyStore("toy://contract")
