"""Range ids of partitions with the servers that gave them.

A standby that becomes the primary may have missed the last take-overs and give their range ids
again. So a range id counts only on the server that gave it.
"""

from __future__ import annotations

from fairlead.model import PartitionKey


class Fences:
    """Range ids that one store has got for its partitions."""

    def __init__(self) -> None:
        self._given: dict[PartitionKey, tuple[int, str]] = {}
        """Last range id with its server, by partition."""

    def taken(self, partition: PartitionKey, range_id: int, server: str) -> None:
        """Note a take-over on this server."""
        self._given[partition] = (range_id, server)

    def void(
        self, partition: PartitionKey, range_id: int, current: int | None, server: str
    ) -> str | None:
        """Return why a range id is void; None if it is valid. `current`: range id that the store
        has now; `server`: the server that responds now."""
        place = f"partition {partition.partition} of {partition.queue}"
        if current != range_id:
            return f"{place} was taken over: range id {range_id} is void"
        given, its_server = self._given.get(partition, (range_id, server))
        if given != range_id or its_server == server:
            return None
        return f"{place}: range id {range_id} is void, because the server was replaced or restarted"
