"""Common parts of all spans: tracer, names and attributes of the messaging conventions, and
failure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, Status, StatusCode, Tracer, TracerProvider
from opentelemetry.util.types import AttributeValue

from fairlead.declare.current import current_task

NOWHERE = Context()
"""Context without span and baggage: the current span of a worker has nothing to do with a task."""


def tracer(provider: TracerProvider | None) -> Tracer:
    """Return Fairlead's tracer of this provider, or of the provider set for the process, now or
    later."""
    return trace.get_tracer("fairlead", tracer_provider=provider)


def attributes(
    operation: str, kind: str, destination: str | None, count: int = 1
) -> dict[str, AttributeValue]:
    """Return the attributes of a messaging span.

    `operation`: our name of the operation. `kind`: its type in the conventions. `count`: number of
    messages in a batch.
    """
    found: dict[str, AttributeValue] = {
        "messaging.system": "fairlead",
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
    }
    if destination is not None:
        found["messaging.destination.name"] = destination
    if count != 1:
        found["messaging.batch.message_count"] = count
    return found


def current_carrier() -> dict[str, str]:
    """Return the current span and baggage as the propagator writes them; empty without either."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier


def carried(carrier: Mapping[str, str]) -> Context:
    """Return a context with the span and baggage of a carrier, and nothing of the current
    context."""
    return propagate.extract(carrier, NOWHERE)


def links(contexts: Iterable[Context]) -> list[Link]:
    """Return a link to the span of each context that has one, each span once."""
    found = [trace.get_current_span(each).get_span_context() for each in contexts]
    return [
        Link(span)
        for span in {
            (span.trace_id, span.span_id): span for span in found if span.is_valid
        }.values()
    ]


def with_carrier(
    given: Mapping[str, str] | None, carrier: Mapping[str, str], span: Span
) -> Mapping[str, str]:
    """Return the carrier of `span`, overlaid by the user's context map.

    A trace context that the user set stays, and the span is linked to it. A trace context that the
    submitting run merely passed on is replaced, because `span` is already a child of the run's
    span.
    """
    if not given:
        return carrier
    if (task := current_task()) is not None:
        fields = propagate.get_global_textmap().fields
        given = {
            key: value
            for key, value in given.items()
            if key not in fields or task.context.get(key) != value
        }
    if not given.keys().isdisjoint(carrier):
        for link in links([carried(given)]):
            span.add_link(link.context)
    return {**carrier, **given}


def fail(span: Span, error: BaseException) -> None:
    """Record the exception, and mark the span as failed."""
    kind = type(error)
    span.set_attribute(
        "error.type", f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    )
    span.record_exception(error)
    span.set_status(Status(StatusCode.ERROR, str(error)))
