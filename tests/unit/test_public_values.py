"""Every parameter of every public function takes a value or refuses it with an error of Fairlead."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fairlead.ordered import repartition
from tests.public_surface import CALLS, NOT_CALLED, Shop, call, surface, undrawn
from tests.unit.test_values import raw_errors

SURFACE = [f"{name}({parameter})" for name, parameter in surface()]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    opened = Shop.open(f"sqlite:///{tmp_path_factory.mktemp('shop')}/shop.db?synchronous=OFF")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repartition, "LAYOUT_SECONDS", 0.0)  # no other node reads the layout
        patch.setattr(repartition, "_MARGIN_SECONDS", 0.0)
        yield opened
    opened.close()


def test_every_public_function_is_drawn_or_has_a_reason() -> None:
    assert undrawn() == []
    assert not set(CALLS) & set(NOT_CALLED)
    assert len(SURFACE) > 150


@pytest.mark.parametrize("place", SURFACE)
def test_each_odd_value_is_taken_or_refused(shop: Shop, place: str) -> None:
    name, _, parameter = place.rstrip(")").partition("(")
    assert raw_errors(lambda value: call(shop, name, parameter, value)) == []
