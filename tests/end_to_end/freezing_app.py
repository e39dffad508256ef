"""The application of the tests that stop a performer of a bulk action: FREEZE names the moment of
its second batch, `before` the transaction or `within` it, and FREEZE_SIGNAL what the process then
sends to itself."""

import os

from fairlead import App
from fairlead.operate import batches

app = App(os.environ["FREEZE_URL"])


@app.task(name="pay")
async def pay(n: int) -> None: ...


batches.MOST_CHANGED = 50
batches.CLAIM_SECONDS = 1.0
_moment = os.environ.get("FREEZE")
_signal = int(os.environ.get("FREEZE_SIGNAL", "0"))
_change_page = batches.change_page
_pages = 0


def _within(steps):
    """Carry out steps, and stop after the first one that has written tasks."""
    result = None
    while True:
        try:
            statement = steps.send(result)
        except StopIteration as end:
            return end.value
        result = yield statement
        if "UPDATE fairlead_tasks" in str(statement):
            os.kill(os.getpid(), _signal)


def change_page(*given):
    """Change a page, and stop in the second one."""
    global _pages
    _pages += 1
    steps = _change_page(*given)
    if _pages != 2 or _moment is None:
        return steps
    if _moment == "before":
        os.kill(os.getpid(), _signal)
        return steps
    return _within(steps)


batches.change_page = change_page
