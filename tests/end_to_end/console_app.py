"""The application behind the web console in its tests: tenants, failures, limits, periodic and
ordered tasks, and hostile text wherever a person may write text."""

import asyncio
import datetime
import os

import fairlead

HOSTILE = "<img src=x onerror=alert(1)>\"'`{{7*7}}%{7*7}</script>&amp;\u202etxt.exe\u202c../..//?#"
"""A name that breaks out of markup, attributes, scripts, templates, paths and lines of text, if any
of them lets it."""

TENANTS = ("acme", "umbrella", "globex", HOSTILE)

app = fairlead.App(os.environ.get("CONSOLE_URL", "sqlite:///console.db"))
app.queue("mail", partitions=2, concurrency=fairlead.Limit(4, per="fairness_key"))
app.queue("exports", order="fifo", concurrency=fairlead.Limit(2))
app.queue("ledger", kind="ordered", partitions=4)
app.queue(HOSTILE, concurrency=fairlead.RateLimit(5, per=1))


@app.task(queue="mail", keep_result=True)
async def send_mail(to: str, seconds: float = 0.01) -> str:
    await asyncio.sleep(seconds)
    return f"sent to {to}"


@app.task(queue="exports", retry=fairlead.Fixed(3600.0, max_attempts=9))
async def export_report(account: str, secret: str = "") -> None:
    raise RuntimeError(f"disk of {account} is full {HOSTILE}")


@app.task(queue="mail", retry=fairlead.NoRetry())
async def charge_card(account: str) -> None:
    raise ValueError(f"card of {account} expired {HOSTILE}")


@app.task(queue="ledger", retry=fairlead.NoRetry())
async def post_entry(number: int) -> None:
    if number < 0:
        raise ValueError("a negative entry")


@app.task(queue=HOSTILE, name=HOSTILE)
async def hostile(text: str) -> None:
    await asyncio.sleep(0)


@app.periodic("*/5 * * * *", queue="mail")
async def clean_up() -> None: ...


def fill() -> None:
    """Submit tasks of every kind: those that end at once, fail, wait, are scheduled, or are stuck."""
    later = app.clock.now() // 1_000_000 + 86_400
    at = datetime.datetime.fromtimestamp(later, datetime.UTC)
    for tenant in TENANTS:
        for user in ("ann", "bob"):
            key = f"{tenant}/{user}" if "/" not in tenant else tenant
            send_mail.options(fairness_key=key).submit_many(
                [{"to": f"{user}{n}@example.com"} for n in range(20)]
            )
        charge_card.options(fairness_key=tenant).submit(account=tenant)
        export_report.options(fairness_key=tenant, unique_key=f"export {tenant}").submit(
            account=tenant, secret="hunter2"
        )
        send_mail.options(fairness_key=tenant, run_at=at).submit(to="later@example.com")
        hostile.options(fairness_key=tenant, ordering_key=f"order {tenant}").submit(text=HOSTILE)
    for account in ("a-1", "a-2"):
        for number in (1, -1, 2):
            post_entry.options(ordering_key=account).submit(number=number)
