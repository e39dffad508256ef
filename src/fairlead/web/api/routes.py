"""Routes of the JSON API: one for each operation, and the OpenAPI document."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from fairlead.web.api.act_operations import ACTS
from fairlead.web.api.history_operations import HISTORY
from fairlead.web.api.openapi import openapi_document
from fairlead.web.api.operations import JSON, PREFIX, Operation
from fairlead.web.api.reads import READS
from fairlead.web.api.sharded_operations import SHARDED_ACTS, SHARDED_READS
from fairlead.web.page import Page
from fairlead.web.routing import ScreenRoute, screen

OPERATIONS: tuple[Operation, ...] = (
    *READS,
    *SHARDED_READS,
    *HISTORY,
    *SHARDED_ACTS,
    *ACTS,
)


def routes() -> list[ScreenRoute]:
    """Return the routes of the API."""
    return [
        screen(f"{PREFIX}/openapi.json", _show_openapi, name="api_openapi", scoped=True),
        *(operation.route for operation in OPERATIONS),
    ]


def _show_openapi(page: Page) -> Response:
    found = openapi_document(OPERATIONS, page.base, page.title)
    return Response(msgspec.json.encode(found), media_type=JSON)
