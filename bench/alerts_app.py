"""The application of the workers of `alerts.py`."""

import asyncio
import os

import fairlead

app = fairlead.App(os.environ.get("ALERTS_URL", "sqlite:///alerts.db"))
app.queue("payouts", partitions=2)


@app.task(queue="payouts", retry=fairlead.NoRetry())
async def pay(fails: bool) -> None:
    """Make a payment."""
    await asyncio.sleep(0.005)
    if fails:
        raise ConnectionError("the bank is unavailable")
