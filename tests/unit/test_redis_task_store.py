"""The claims of the task store on Redis, where two lanes may hold messages of the same id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from fairlead.model import Finish

pytest.importorskip("redis", reason="needs the extra redis")
from fairlead.backends.redis.sharded.claims import Claims, LaneClaim, PriorityLane  # noqa: E402
from fairlead.backends.redis.sharded.consumer import Consumer  # noqa: E402
from fairlead.backends.redis.sharded.endpoint import RedisEndpoint  # noqa: E402
from fairlead.backends.redis.sharded.message import ClaimEnd  # noqa: E402
from fairlead.backends.redis.task_messages import Body, HeldTask  # noqa: E402
from fairlead.backends.redis.task_store import RedisTaskStore  # noqa: E402

KEPT, LOST = PriorityLane("mail", 0), PriorityLane("news", 0)


class Losing(Consumer):
    """A consumer whose claims in one lane belong to another node."""

    def __init__(self) -> None:
        self.claims = Claims()

    async def finish(self, finishes: Mapping[PriorityLane, Sequence[ClaimEnd]]) -> list[LaneClaim]:
        return [LaneClaim(LOST, end.id) for end in finishes.get(LOST, ())]


async def test_a_lost_claim_refuses_no_task_with_an_equal_message_id_in_another_lane() -> None:
    store = RedisTaskStore(RedisEndpoint.of("redis://127.0.0.1:1/0"))
    store.consumer = consumer = Losing()
    for task_id, lane in (("kept", KEPT), ("lost", LOST)):
        body = Body(task_id, "send", "json", None, 1.0, 0, 0, 2)
        store.claimed[task_id] = HeldTask(body, b"{}", lane.queue, lane.priority, "", 1, 0)
        consumer.claims.add(task_id, LaneClaim(lane, "1-0"))
    finishes = [
        Finish(task_id, held.version + 1, "COMPLETED", "COMPLETED", 0, 1)
        for task_id, held in store.claimed.items()
    ]
    completed = await store.complete("a", cast(Any, finishes))
    assert completed.refused == ["lost"]
    assert not store.claimed and not len(consumer.claims)
