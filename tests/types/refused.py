"""Code in which type checkers find an error on each line marked `# wrong`, and on no other. Never
imported."""

from __future__ import annotations

import sqlite3
from datetime import datetime

from fairlead import App, NoRetry, TaskHandle

app = App("sqlite:///types.db")
app.queue("mail", partition=2)  # wrong
App("sqlite:///types.db", channels="redis://localhost")  # wrong


@app.task
async def pay(partner: str, amount: int = 1) -> float:
    return amount / 2


@app.task(keep_result=True)
def count(text: str) -> int:
    return len(text)


@app.task(transactional=True)
def book(connection: sqlite3.Connection, order: int) -> str:
    return str(order)


@app.periodic("0 2 * * *")
@app.task
def report(slot: datetime) -> None: ...


pay.submit()  # wrong
pay.submit(7)  # wrong
pay.submit("acme", amounts=3)  # wrong
pay.submit("acme", amount="3")  # wrong
pay.draft(partnr="acme")  # wrong
pay.options(priorities=1)  # wrong
pay.options(run_at="tomorrow").submit("acme")  # wrong
pay("acme", "3")  # wrong
count.submit("x").result().upper()  # wrong
count.submit_many([("text", "a")])  # wrong
count.submit_many({"text": "a"})  # wrong
app.submit_many([count])  # wrong
book.submit(ordr=7)  # wrong
book.submit(order="7")  # wrong
book(7)  # wrong
report.submit(slot="today")  # wrong
report.submit_later()  # wrong
app.task(retry=3)  # wrong
app.task(retry=NoRetry(), time_out=3)  # wrong
app.periodic("* * * * *", timezon="UTC")  # wrong
app.periodic("* * * * *", queue=3)  # wrong
wanted: TaskHandle[str] = count.submit("x")  # wrong


async def submit() -> None:
    """Submit from asynchronous code."""
    await pay.submit_async(7)  # wrong
    pay.submit("acme").result().upper()  # wrong
