"""Take the pictures of docs/how-to/console.md, over the workload of scripts/console_shop.py.

python -m scripts.console_pictures [FOLDER]     (default: docs/how-to/console)
"""

from __future__ import annotations

import contextlib
import datetime
import importlib
import os
import shutil
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Unpack

from PIL import Image

from fairlead import App
from fairlead.model import State
from fairlead.operate.changes import Cancel, Change, Retry
from fairlead.operate.filters import TaskFilters, task_filter
from scripts.console_lake import make_lake
from services.redis import RedisServer
from tests.browsers import Viewer, started
from tests.consoles import serving, until, working

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "how-to" / "console"
WIDTH, LOWEST, HEIGHT = 1280, 720, 1100
COLORS = 128


def main(folder: Path) -> int:
    """Take all pictures."""
    with (
        tempfile.TemporaryDirectory(prefix="shop-") as temporary,
        contextlib.ExitStack() as stack,
    ):
        work = Path(temporary)
        os.environ["SHOP_URL"] = f"sqlite:///{work}/shop.db"
        # Tracebacks on the pictures name the files of this folder.
        (work / "src").symlink_to(ROOT / "src")
        shutil.copy(ROOT / "scripts" / "console_shop.py", work / "shop.py")
        os.environ["SHOP_LAKE"] = str(work / "lake")
        make_lake(work / "lake", datetime.datetime.now(datetime.UTC))
        redis = RedisServer()
        redis.start()
        stack.callback(redis.stop, "immediate")
        os.environ["SHOP_REDIS"] = redis.url
        environment = {"PYTHONPATH": f"{work / 'src'}:{work}"}
        sys.path.insert(0, str(work))
        shop = importlib.import_module("shop")
        shop.app.migrate()
        with contextlib.ExitStack() as stack:
            for _ in range(2):
                stack.enter_context(
                    working(
                        work,
                        "shop:app",
                        "--concurrency",
                        "12",
                        environment=environment,
                    )
                )
            until(lambda: len(shop.app.management.periodic.list()) == 3)
            shop.settle()
            shop.fill()
            shop.fill_thumbnails()
            until(lambda: _ready(shop.app, "exports") <= 5_600)
            _act(shop, Retry(actor=shop.BEN), tenant="initech", name="charge_card")
            _act(shop, Cancel(actor=shop.ADA), tenant="tyrell", queue="webhooks")
            process, base, token = stack.enter_context(
                serving(work, module="shop", environment=environment)
            )
            assert process.poll() is None
            with started() as browser:
                error = shop.app.management.page(state=State.ERROR, name="charge_card", limit=1)
                for name, scheme, path in (
                    ("overview", "light", "/"),
                    ("tenants", "light", "/tenants"),
                    ("task", "light", f"/tasks/task?id={error.tasks[0].id}"),
                    ("queue", "dark", "/queues/queue?name=exports"),
                ):
                    viewer = Viewer(browser, base, scheme=scheme, width=WIDTH)
                    viewer.visit(f"/login?token={token}")
                    shop.go_on()
                    _take(viewer, path, folder / f"{name}-{scheme}.png")
                    assert viewer.complaints == [], viewer.complaints
                    viewer.close()
        shop.app.close()
    return 0


def _act(shop: ModuleType, change: Change, **filters: Unpack[TaskFilters]) -> None:
    """Let a worker change all tasks that match, and wait for its end."""
    actions = shop.app.management.actions
    asked = actions.ask(change, task_filter(filters, None, shop.app.clock.now()))
    until(lambda: actions.show(asked.id).ended_at is not None)


def _ready(app: App, queue: str) -> int:
    return sum(each.submitted for each in app.management.queues() if each.queue == queue)


def _take(viewer: Viewer, path: str, file: Path) -> None:
    """Take the picture of one screen, down to the end of the page or HEIGHT."""
    page = viewer.visit(path)
    page.set_viewport_size({"width": WIDTH, "height": LOWEST})
    height = page.evaluate("document.documentElement.scrollHeight")
    page.set_viewport_size({"width": WIDTH, "height": min(HEIGHT, height)})
    file.parent.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=file, animations="disabled")
    _shrink(file)


def _shrink(file: Path) -> None:
    """Keep few colours: a picture of text needs no more."""
    with Image.open(file) as picture:
        small = picture.convert("RGB").quantize(COLORS, kmeans=2, dither=Image.Dither.NONE)
    small.save(file, optimize=True)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER))
