"""What the workers of `alerts.py` serve."""

import asyncio
import os

import fairlead

app = fairlead.App(os.environ.get("ALERTS_URL", "sqlite:///alerts.db"))
app.queue("payouts", partitions=2)


@app.task(queue="payouts", retry=fairlead.NoRetry())
async def pay(fails: bool) -> None:
    """A payment."""
    await asyncio.sleep(0.005)
    if fails:
        raise ConnectionError("the bank is away")
