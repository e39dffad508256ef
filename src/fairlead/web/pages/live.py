"""The stream of server-sent events, which tells open pages that something has changed."""

from __future__ import annotations

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from fairlead.web.live import LiveHub
from fairlead.web.page import Page
from fairlead.web.refusals import Refusal
from fairlead.web.routing import ScreenRoute, screen


def routes() -> list[ScreenRoute]:
    """Return the route of the stream, whose events name nothing, so that all may open it."""
    return [screen("/live", stream_changes, name="live", scoped=True)]


async def stream_changes(page: Page) -> Response:
    """Stream an event for each change. Raise Refusal for too many viewers at once."""
    live = page.parts.live
    if not page.parts.settings.live:
        raise Refusal(404, "No such page", "This console was made with live=False.")
    if live.is_full:
        raise Refusal(503, "Too many viewers", "Close other pages of the console, then try again.")
    if page.request.method == "HEAD":
        return Response(media_type="text/event-stream")
    return _Events(live, is_limited=page.access.tenants is not None)


class _Events(StreamingResponse):
    """Response that counts as a stream of the hub until it ends."""

    def __init__(self, live: LiveHub, *, is_limited: bool) -> None:
        self._live = live
        super().__init__(
            live.stream(is_limited=is_limited),
            media_type="text/event-stream",
            headers={"X-Accel-Buffering": "no"},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._live.counted():
            await super().__call__(scope, receive, send)
