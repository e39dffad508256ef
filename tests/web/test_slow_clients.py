"""Slow clients of the server of `fairlead web`: they are closed or bounded, and others are served."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.responses import Response

from fairlead import App
from fairlead.cli.web import listening
from fairlead.web import Access, server
from tests.web.browsing import with_access

pytestmark = pytest.mark.system_time


@contextmanager
def serving(application: Any) -> Iterator[tuple[str, int]]:
    """Serve on a port of this machine; yield the address and the port."""
    with listening("127.0.0.1", 0) as port:
        running = uvicorn.Server(server.config_of(application))
        thread = threading.Thread(target=running.run, kwargs={"sockets": [port]})
        thread.start()
        number = port.getsockname()[1]
        try:
            yield f"http://127.0.0.1:{number}", number
        finally:
            running.should_exit = True
            thread.join()


def opened(stack: ExitStack, port: int, sent: bytes = b"") -> socket.socket:
    """Return a connection on which these bytes were sent."""
    connection = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
    if sent:
        connection.sendall(sent)
    return connection


def ended(connection: socket.socket) -> bool:
    """Read until the server closes the connection."""
    try:
        while connection.recv(65_536):
            pass
    except ConnectionResetError:
        pass
    return True


HEAD = b"POST /do/pause_queue HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nto"


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: local", HEAD])
def test_a_client_that_does_not_send_a_whole_request_is_closed(
    app: App, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.2)
    console = with_access(app, Access.full())
    with serving(console) as (address, port), ExitStack() as stack:
        assert ended(opened(stack, port, sent))
        assert httpx.get(f"{address}/queues").status_code == 200


def test_a_client_that_sends_byte_by_byte_does_not_gain_time(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.3)
    with serving(with_access(app, Access.full())) as (_, port), ExitStack() as stack:
        connection = opened(stack, port)
        connection.settimeout(0.02)
        with pytest.raises(ConnectionError):
            while True:
                connection.sendall(b"a")
                try:
                    if not connection.recv(1):
                        raise ConnectionResetError
                except TimeoutError:
                    continue


def test_the_time_begins_again_with_each_request_of_a_connection(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(with_access(app, Access.full())) as (_, port):
        connection = HTTPConnection("127.0.0.1", port)
        for _ in range(2):
            connection.request("GET", "/login")
            response = connection.getresponse()
            assert response.status == 404 and response.read()
        monkeypatch.setattr(server, "REQUEST_SECONDS", 0.2)
        connection.sock.sendall(b"GET /login")
        assert ended(connection.sock)
        connection.close()


def test_open_connections_are_bounded_and_new_clients_are_served(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MOST_CONNECTIONS", 20)
    with serving(with_access(app, Access.full())) as (address, port), ExitStack() as stack:
        slow = [opened(stack, port, b"GET / HTTP/1.1\r\n") for _ in range(60)]
        for each in slow[:40]:
            assert ended(each)
        for _ in range(3):
            assert httpx.get(f"{address}/queues").status_code == 200


def test_a_client_that_reads_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "WRITE_SECONDS", 0.2)
    is_over = threading.Event()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await Response(b"x" * 30_000_000)(scope, receive, send)
        while (await receive())["type"] != "http.disconnect":
            pass
        is_over.set()

    with serving(application) as (_, port), ExitStack() as stack:
        opened(stack, port, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert is_over.wait()


def test_a_burst_of_streams_is_bounded(app: App) -> None:
    console = with_access(app, Access.full())
    console.parts.live.most_viewers = 5
    with serving(console) as (_, port), ExitStack() as stack:
        request = b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n"
        streams = [opened(stack, port, request) for _ in range(30)]
        heads = [stream.recv(12) for stream in streams]
        assert heads.count(b"HTTP/1.1 200") == 5
        assert heads.count(b"HTTP/1.1 503") == 25
        console.parts.live.end()
