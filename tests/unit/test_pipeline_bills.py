"""Bills of days from the settings of the pipeline."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import pytest

pytest.importorskip("pyarrow", reason="needs the extra pipeline")

from fairlead.pipeline.settings import Bill, Cost, PipelineSettings

DAY = date(2026, 3, 29)


def test_a_day_without_a_bill_has_the_price_of_24_hours_of_each_worker() -> None:
    settings = PipelineSettings(cost=Cost(workers=2, worker_hour=Decimal("0.5")))
    assert settings.bills_for([DAY]) == [(DAY, "*", 48 * 3_600_000_000, Decimal(24))]


def test_an_amount_of_more_places_is_rounded_to_a_millionth() -> None:
    settings = PipelineSettings(bill=[Bill(DAY, Decimal("17.0000015001"), 24.0)])
    assert settings.bills_for([DAY]) == [(DAY, "*", 24 * 3_600_000_000, Decimal("17.000002"))]
