"""Routes of the JSON API: one for each operation, and the OpenAPI document."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from fairlead.operate.change_operations import CHANGING
from fairlead.operate.operations import Operation, declare
from fairlead.operate.read_operations import READS
from fairlead.web.api.documents import Rights
from fairlead.web.api.history_operations import HISTORY
from fairlead.web.api.openapi import openapi_document
from fairlead.web.api.operations import JSON, PREFIX, route_of
from fairlead.web.api.sharded_operations import SHARDED
from fairlead.web.page import Page
from fairlead.web.routing import ScreenRoute, screen

OPERATIONS: list[Operation] = []
"""All operations of the JSON API."""


@declare(OPERATIONS, "/access", scoped=True, is_shared=False, needs_page=True)
def access(page: Page) -> Rights:
    """Return the rights of the caller."""
    access = page.access
    return Rights(
        name=access.name,
        actions=sorted(access.actions),
        tenants=None if access.tenants is None else sorted(access.tenants),
        csrf_token=page.csrf_token or None,
    )


OPERATIONS += [each for each in (*READS, *SHARDED, *HISTORY, *CHANGING) if each.path is not None]


def routes() -> list[ScreenRoute]:
    """Return the routes of the API."""
    return [
        screen(f"{PREFIX}/openapi.json", _show_openapi, name="api_openapi", scoped=True),
        *(route_of(operation) for operation in OPERATIONS),
    ]


def _show_openapi(page: Page) -> Response:
    found = openapi_document(OPERATIONS, page.base, page.title)
    return Response(msgspec.json.encode(found), media_type=JSON)
