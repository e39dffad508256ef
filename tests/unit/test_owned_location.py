"""The owner of a name while the task store is away: its location must do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fairlead.errors import StoreUnavailable
from fairlead.ports.owner_record import OwnedName, OwnerRecord

HERE = "PostgreSQL at db:5432/shop"
NAME = OwnedName("prefix 'shop.' of Kafka at k1:9092", "the topic shop.owner", "prefix= in the URL")


@pytest.mark.parametrize(
    ("owner", "is_taken_for_ours"),
    [
        (OwnerRecord("1", HERE), True),
        (OwnerRecord("1", "PostgreSQL at db:5432/other"), False),
        (None, False),
    ],
)
def test_a_name_is_ours_while_the_store_is_away_if_its_owner_is_at_the_same_location(
    owner: OwnerRecord | None, is_taken_for_ours: bool
) -> None:
    store: Any = SimpleNamespace(database=SimpleNamespace(location=HERE))
    away = StoreUnavailable("the store is away")
    if is_taken_for_ours:
        NAME.require_location(owner, store, away)
    else:
        with pytest.raises(StoreUnavailable, match="the store is away"):
            NAME.require_location(owner, store, away)
