"""The application in the pictures of the web console: a payment service with several customers."""

from __future__ import annotations

import asyncio
import datetime
import os
import random

import fairlead
from fairlead.cli.web import ServeOptions, listening, serve
from fairlead.operate.policies import PolicyManagement
from fairlead.operate.store.policies import PolicyDraft, SwitchMode
from fairlead.sharded import SyncShardedQueue
from fairlead.web import console

app = fairlead.App(
    os.environ.get("SHOP_URL", "sqlite:///shop.db"),
    name="shop",
    lake=os.environ.get("SHOP_LAKE", "lake"),
)
app.queue("payments", partitions=4, concurrency=fairlead.Limit(3, per="fairness_key"))
app.queue("receipts", partitions=2)
app.queue("exports", partitions=2, concurrency=fairlead.ClusterLimit(6, name="warehouse"))
app.queue("webhooks", partitions=2, concurrency=fairlead.RateLimit(40, per=1.0, key="fairness_key"))
app.queue("newsletters")
app.queue("ledger", kind="ordered", partitions=4)

CUSTOMERS = ("northwind", "globex", "initech", "umbrella", "hooli", "wonka", "tyrell")
FLOOD = "globex"
ADA, BEN = "ada@shop.example", "ben@shop.example"

_random = random.Random(7)


class CardDeclined(Exception):
    """The bank refused a payment."""


class ReceiverAway(Exception):
    """The server of a customer does not respond."""


class WarehouseFull(Exception):
    """The warehouse has no space for another export."""


@app.task(queue="payments", retry=fairlead.NoRetry())
async def charge_card(invoice: str, cents: int, card: str = "") -> None:
    """Charge a card; the bank refuses one cent."""
    await asyncio.sleep(0.03)
    if cents == 1:
        raise CardDeclined(f"invoice {invoice}: the bank refused the card")


@app.task(queue="receipts")
async def send_receipt(to: str, invoice: str) -> None:
    """Send a receipt."""
    await asyncio.sleep(0.01)


@app.task(queue="exports", retry=fairlead.Fixed(900.0, max_attempts=4))
async def export_month(month: str, rows: int) -> None:
    """Export a month; the warehouse has no space for more than a million rows."""
    await asyncio.sleep(0.05)
    if rows > 1_000_000:
        raise WarehouseFull(f"{month}: {rows:,} rows need 12 GB, 3 GB are free")


@app.task(queue="webhooks", retry=fairlead.Fixed(1800.0, max_attempts=12))
async def deliver_webhook(url: str, event: str) -> None:
    """Call the server of a customer; an old one does not respond."""
    await asyncio.sleep(0.02)
    if "old" in url:
        raise ReceiverAway(f"POST {url}: no response within 10 s")


@app.task(queue="newsletters")
async def send_newsletter(to: str) -> None:
    """Send a newsletter."""


@app.task(queue="ledger", retry=fairlead.Fixed(600.0, max_attempts=50))
async def post_entry(account: str, cents: int) -> None:
    """Post an entry to an account; one of nothing fails."""
    if cents == 0:
        raise ValueError(f"account {account}: an entry of nothing")


@app.periodic("0 3 * * *", queue="exports", timezone="Europe/Berlin")
async def close_the_day() -> None:
    """Export what the day has brought."""


@app.periodic("*/15 * * * *", queue="payments")
async def settle_refunds() -> None:
    """Settle refunds with the bank."""


@app.periodic("0 8 * * 1", queue="newsletters", timezone="America/New_York", catch_up="none")
async def weekly_digest() -> None:
    """Send the digest of the week."""


def thumbnails() -> SyncShardedQueue:
    """Return the sharded queue of images, which other services write and read."""
    url = os.environ["SHOP_REDIS"]
    return SyncShardedQueue(url, "thumbnails", reads="tenants", max_deliveries=1)


def fill_thumbnails() -> None:
    """Write images of each customer; one consumer has died with broken ones."""
    with thumbnails() as queue:
        for number in range(4):
            queue.write({"file": f"broken-{number}.tif", "bytes": 0}, shard_key=FLOOD)
        queue.read_many("resizers", "resizer-0", count=4)
        queue.reclaim("resizers", "resizer-1", min_idle=0)
        for weight, customer in enumerate(CUSTOMERS, start=2):
            for number in range(9 * weight):
                queue.write({"file": f"{customer}-{number}.png"}, shard_key=customer)
        for reader in ("resizer-1", "resizer-2"):
            queue.read_many("resizers", reader, count=6)


def main() -> None:
    """Serve the console with the sharded queue, on a free port."""
    with thumbnails() as queue, listening("127.0.0.1", 0) as port:
        serve(console(app, sharded=[queue], title="Shop"), ServeOptions(port=0), port)


def settle() -> None:
    """Do what persons and the pipeline do before the workload: weights, policies, pauses."""
    management = app.management
    management.pause("newsletters", actor=ADA)
    management.set_weight("exports", "northwind", 3.0, actor=ADA)
    management.periodic.pause("weekly_digest", actor=BEN)
    policies = PolicyManagement(app.operate_context)
    first = policies.publish(_draft("exports", "nightly tune", umbrella=1.4, hooli=0.8), None)
    policies.keep(first, "kept: the shares came closer to those due")
    policies.publish(
        _draft("exports", "globex has run 4 times its due share", globex=0.4, umbrella=1.6), first
    )
    policies.publish(_draft("payments", "nightly tune", initech=1.2, wonka=0.9), None)
    policies.switch(SwitchMode.FROZEN, ADA, "sale until Sunday", queue="payments")


def _draft(queue: str, why: str, **guarded: float) -> PolicyDraft:
    now = app.clock.now()
    day = 86_400_000_000
    return PolicyDraft(
        queue=queue,
        author="fairlead tune",
        why=why,
        computed_at=now,
        input_from=now - 7 * day,
        input_to=now,
        input_rows=1_284_310,
        raw={key: weight * 0.9 for key, weight in guarded.items()},
        guarded=guarded,
        reasons=dict.fromkeys(guarded, "moves half of the way a version"),
        limits={"globex": 4},
        limit_reasons={"globex": "waits of others grew while more than 4 ran"},
        is_canary=queue == "exports",
    )


def go_on() -> None:
    """Submit what customers ask for in a moment."""
    for customer in CUSTOMERS:
        charge_card.options(fairness_key=f"{customer}/eu").submit_many(
            [{"invoice": f"2026-{n:04}", "cents": 1999} for n in range(20)]
        )
        send_receipt.options(fairness_key=f"{customer}/us").submit_many(
            [{"to": f"buyer{n}@{customer}.example", "invoice": f"2026-{n:04}"} for n in range(20)]
        )
        export_month.options(fairness_key=customer).submit_many(
            [{"month": "2026-11", "rows": n} for n in range(6)]
        )


def fill() -> None:
    """Submit the workload: one customer floods the exports, the others ask for a little of all."""
    for customer in CUSTOMERS:
        number = 6_000 if customer == FLOOD else _random.randrange(60, 160)
        export_month.options(fairness_key=customer).submit_many(
            [{"month": f"2026-{1 + n % 12:02}", "rows": 1_000 + n} for n in range(number)]
        )
    for customer in CUSTOMERS:
        for user in ("eu", "us"):
            key = f"{customer}/{user}"
            number = _random.randrange(120, 300)
            charge_card.options(fairness_key=key).submit_many(
                [
                    {"invoice": f"2026-{n:04}", "cents": 1 if n % 61 == 5 else 1999, "card": "4242"}
                    for n in range(number)
                ]
            )
            send_receipt.options(fairness_key=key).submit_many(
                [
                    {"to": f"buyer{n}@{customer}.example", "invoice": f"2026-{n:04}"}
                    for n in range(number)
                ]
            )
            host = "old." if customer == "tyrell" and user == "us" else ""
            deliver_webhook.options(fairness_key=key).submit_many(
                [
                    {"url": f"https://{host}{customer}.example/hooks", "event": f"paid {n}"}
                    for n in range(number // 2)
                ]
            )
        export_month.options(fairness_key=customer, unique_key=f"{customer} 2025").submit(
            month="2025-12", rows=2_400_000 if customer in ("hooli", "umbrella") else 90_000
        )
    morning = datetime.datetime.fromtimestamp(app.clock.now() // 1_000_000 + 36_000, datetime.UTC)
    send_newsletter.options(fairness_key="northwind").submit_many([{"to": "all"}] * 12)
    send_receipt.options(fairness_key="wonka/eu", run_at=morning).submit(
        to="buyer@wonka.example", invoice="2026-0999"
    )
    for account in ("4711", "4712", "4713", "4714", "4715", "4716"):
        for cents in (1999, 0 if account in ("4713", "4716") else 250, 7900, 1250):
            post_entry.options(ordering_key=f"account {account}").submit(
                account=account, cents=cents
            )


if __name__ == "__main__":
    main()
