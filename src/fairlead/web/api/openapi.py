"""The OpenAPI 3.1 document of the JSON API, made from its operations and their structs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from fairlead import __version__
from fairlead.operate.documents import document_kind
from fairlead.operate.operations import Operation
from fairlead.web.api.documents import ErrorDocument
from fairlead.web.api.operations import JSON, PREFIX, body_of

_PROBLEMS = {
    400: "The request cannot be used.",
    401: "Not logged in, or a wrong token.",
    403: "Not allowed.",
    404: "No such thing, or one of another tenant.",
    409: "Not possible in this state, or changed meanwhile.",
    413: "The body is too large.",
    415: "The body is no JSON.",
    429: "Too many wrong tokens.",
    500: "A defect; the log has it under the id of `detail`.",
    501: "This store does not have that.",
    503: "The store does not respond.",
}


_REPEATED = "May be sent again after a lost response."
_NOT_REPEATED = "A second request does it a second time."


def openapi_document(operations: Sequence[Operation], base: str, title: str) -> dict[str, Any]:
    """Return the document. `base`: the prefix under which the console is mounted."""
    types = list(dict.fromkeys(_types(operations)))
    references, schemas = msgspec.json.schema_components(
        types, ref_template="#/components/schemas/{name}"
    )
    of_type = dict(zip(types, references, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        assert operation.path is not None
        described = _operation(operation, of_type)
        paths[PREFIX + operation.path] = {"get" if operation.is_read else "post": described}
        if operation.is_read:
            schema = schemas.pop(operation.arguments.__name__)
            described["parameters"] = _parameters(operation, schema)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": f"{title}: JSON API",
            "version": __version__,
            "description": "Ids and 64-bit numbers are texts, instants are ISO 8601 in UTC,"
            " durations are in seconds. Texts of tasks are data of the application.",
        },
        "servers": [{"url": base or "/"}],
        "security": [{"token": []}, {"session": [], "csrf": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": {
                str(status): {
                    "description": description,
                    "content": {JSON: {"schema": of_type[document_kind(ErrorDocument)]}},
                }
                for status, description in _PROBLEMS.items()
            },
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "session": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": "fairlead_session",
                    "description": "The session of the console; its name has the port in it.",
                },
                "csrf": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "X-CSRF-Token",
                    "description": "`csrf_token` of /api/v1/access, for POST.",
                },
            },
        },
    }


def _types(operations: Sequence[Operation]) -> list[Any]:
    found = [document_kind(ErrorDocument)]
    for operation in operations:
        found.append(document_kind(operation.result))
        sent = operation.arguments if operation.is_read else body_of(operation)
        if sent is not None:
            found.append(sent)
    return found


def _operation(operation: Operation, of_type: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    status, body = 202 if operation.is_queued else 200, body_of(operation)
    found: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "description": _REPEATED if operation.is_idempotent else _NOT_REPEATED,
        "tags": [str(operation.path).split("/")[1]],
        "parameters": [_parameter(name, {"type": "string"}, "path") for name in operation.in_path],
        "responses": {
            str(status): {
                "description": "Done." if status == 200 else "Stored; a worker performs it.",
                "content": {JSON: {"schema": of_type[document_kind(operation.result)]}},
            },
            **{
                str(problem): {"$ref": f"#/components/responses/{problem}"} for problem in _PROBLEMS
            },
        },
    }
    if not operation.is_read and body is not None:
        found["requestBody"] = {"required": True, "content": {JSON: {"schema": of_type[body]}}}
    return found


def _parameters(operation: Operation, arguments: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the parameters whose values are the arguments of this schema."""
    in_path, required = operation.in_path, arguments.get("required", ())
    found = [
        _parameter(name, schema, "path" if name in in_path else "query", name in required)
        for name, schema in arguments["properties"].items()
    ]
    return [*found, _NO_KEY] if operation.has_filter else found


def _parameter(
    name: str, schema: dict[str, Any], place: str = "query", is_required: bool = True
) -> dict[str, Any]:
    return {"name": name, "in": place, "required": is_required, "schema": schema}


_NO_KEY = _parameter("no_key", {"type": "string", "enum": ["on", "off", "1", "0"]}, "query", False)
"""The parameter of a filter for tasks without a fairness key, whose value in a query is empty."""
