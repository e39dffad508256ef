"""The application of the crash tests: its handlers leave traces that survive a kill -9."""

import asyncio
import os
import time

import fairlead

app = fairlead.App(os.environ.get("CRASH_URL", "sqlite:///crash.db"))
app.queue("crash", partitions=6, order=os.environ.get("CRASH_ORDER", "fair") or None)
_seconds = float(os.environ.get("CRASH_SLEEP", "0.003"))
_gate = os.environ.get("CRASH_GATE")
_trace = os.open(
    os.environ.get("CRASH_TRACE", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600
)


def trace(n: int) -> None:
    """Append one line by one write, so that a kill leaves the whole line or nothing."""
    os.write(_trace, f"{n} {os.getpid()} {time.time():.6f}\n".encode())


@app.task(queue="crash")
async def work(n: int) -> None:
    trace(n)
    if _gate is not None and n >= 0:
        while not os.path.exists(_gate):
            await asyncio.sleep(0.1)
    if _seconds:
        await asyncio.sleep(_seconds)


@app.task(queue="crash")
def load(n: int) -> None:
    """Begin after the checkpoint, and store one for each of n rows; stop at half without one."""
    task = fairlead.current_task()
    assert task is not None
    first = task.last_checkpoint or 0
    for row in range(first, n):
        trace(row)
        task.progress(row, n)
        task.checkpoint(row + 1)
        if first == 0 and row + 1 == n // 2:
            trace(-1)
            time.sleep(600)


@app.task(queue="crash")
async def follow(n: int) -> None: ...


@app.task(queue="crash", transactional=True)
async def effect_async(n: int, connection) -> None:
    trace(n)
    await asyncio.sleep(0.002)
    done = connection.execute(f"INSERT INTO effects VALUES ({n})")
    if asyncio.iscoroutine(done):
        await done
    await follow.submit_async(n=n)


@app.task(queue="crash", transactional=True)
def effect_thread(n: int, connection) -> None:
    trace(n)
    connection.execute(f"INSERT INTO effects VALUES ({n})")
    follow.submit(n=n)
