"""A change of owner of a fair lane with more keys than its record has, and whose triggers come in
the order of arrival."""

from __future__ import annotations

import pytest

from tests.integration.owner_change_kit import KEYS, Queue

pytestmark = [pytest.mark.ordered, pytest.mark.virtual_time]


@pytest.mark.parametrize("prefix", ["k", "t/k"])
async def test_a_new_owner_keeps_the_order_of_keys_and_their_turns(
    sqlite_url: str, prefix: str
) -> None:
    """`prefix`: whether the keys are tenants, or keys of one tenant."""
    await Queue(sqlite_url, backlog="database").change_owner([f"{prefix}{n}" for n in range(KEYS)])
