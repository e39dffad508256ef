"""What all spans share: their tracer, the names and attributes of the messaging conventions, and
how one fails."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, Status, StatusCode, Tracer, TracerProvider
from opentelemetry.util.types import AttributeValue

from fairlead.declare.current import current_task

NOWHERE = Context()
"""No span and no baggage: whatever happens to be current in a worker is nothing of the task's."""


def tracer(provider: TracerProvider | None) -> Tracer:
    """Of this provider, or of the one that is set for the process, now or later."""
    return trace.get_tracer("fairlead", tracer_provider=provider)


def attributes(
    operation: str, kind: str, destination: str | None, count: int = 1
) -> dict[str, AttributeValue]:
    """Of a span of the messaging conventions. `operation`: our word; `kind`: theirs; `count`:
    messages, where not one."""
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
    """What the propagator writes of the current span and baggage; empty when there is neither."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier


def carried(carrier: Mapping[str, str]) -> Context:
    """The span and the baggage in a carrier, and nothing of what is current here."""
    return propagate.extract(carrier, NOWHERE)


def links(contexts: Iterable[Context]) -> list[Link]:
    """A link to the span of each context that has one, to each span once."""
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
    """The carrier of `span`, and the context map that the user gave over it: a trace context that
    the user chose stays, and the span is linked to it. What only passes on the context of the run
    that submits is not chosen: the span is below it."""
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
    """Record the exception, and that the span has failed by it."""
    kind = type(error)
    span.set_attribute(
        "error.type", f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    )
    span.record_exception(error)
    span.set_status(Status(StatusCode.ERROR, str(error)))
