"""A change of owner of a fair lane whose triggers come through other servers, or wait in one."""

from __future__ import annotations

import pytest

from tests.integration.owner_change_kit import KEYS, Queue
from tests.tiers import NIGHTLY

pytestmark = NIGHTLY  # the matrix


@pytest.mark.parametrize("option", ["channel kafka", "backlog cassandra"])
async def test_a_new_owner_keeps_the_order_of_keys_and_their_turns(
    sqlite_url: str,
    request: pytest.FixtureRequest,
    option: str,
) -> None:
    kind, server = option.split()
    queue = Queue(sqlite_url, **{kind: request.getfixturevalue(f"{server}_url")})
    await queue.change_owner([f"k{n}" for n in range(KEYS)])
