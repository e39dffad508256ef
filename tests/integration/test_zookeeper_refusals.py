"""A ZooKeeper that refuses a worker: the worker ends with one error that names the cause."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("kazoo", reason="needs the extra zookeeper")
from kazoo.client import KazooClient  # noqa: E402
from kazoo.security import make_acl  # noqa: E402

from fairlead import App  # noqa: E402
from fairlead.cli.output import expected  # noqa: E402


@pytest.mark.parametrize("folder", ["leases/held", "leases/ids"])
async def test_a_changed_acl_ends_a_running_worker_with_one_line_that_names_the_cause(
    sqlite_url: str, zookeeper_url: str, folder: str
) -> None:
    app = App(sqlite_url, coordinator=zookeeper_url)
    app.queue("mail", partitions=2)
    app.migrate()
    hosts, _, root = zookeeper_url.removeprefix("zookeeper://").partition("/")
    node = app.node(lease_seconds=4.0)
    serving = asyncio.create_task(node.run())
    await node.ready.wait()
    client = KazooClient(hosts)
    client.start()
    path = f"/{root}/{folder}"
    for each in [path, *(f"{path}/{child}" for child in client.get_children(path))]:
        client.set_acls(each, [make_acl("world", "anyone", read=False, admin=True)])
    client.stop()
    client.close()
    node.parts.ownership.poke()
    with pytest.raises(BaseException) as caught:
        async with asyncio.timeout(20):
            if folder == "leases/ids":  # read only when a lease is acquired
                await app.connections.coordinator.acquire(["other"], "somebody", 4.0)
            await serving
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    found = expected(caught.value)
    assert found is not None
    (line,), code = found
    assert code == 2 and "refused access" in line and "NoAuthError" in line
    app.close()
