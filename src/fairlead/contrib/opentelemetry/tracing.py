"""Spans for submits and runs, linked through the task: its context map carries the trace context,
on every store."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from opentelemetry import context, propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.util.types import AttributeValue

from fairlead.declare.current import CurrentTask, current_task
from fairlead.declare.handler import RunInterceptor
from fairlead.declare.options import Options
from fairlead.declare.task import Draft, Submission
from fairlead.engine.run import CancelReason
from fairlead.errors import Snooze

NOWHERE = Context()
"""Context without span and baggage: the current span of a worker has nothing to do with a task."""

_SUBMIT, _RUN = (
    {
        "messaging.system": "fairlead",
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
    }
    for name, kind in (("submit", "send"), ("run", "process"))
)


class Tracing(RunInterceptor):
    """Interceptor for OpenTelemetry: `App(interceptors=[Tracing()])`.

    Every submit is one span `submit QUEUE` of kind PRODUCER, however many tasks it has. The
    propagator adds the trace context and the current baggage to each task's context map; keys of
    the user stay. Every run, and so every retry, is a span `run QUEUE` of kind CONSUMER.

    The span of a run is a child of the submit's span and has a link to it. The messaging
    conventions ask for the link and allow the parent where messages are processed one at a time, as
    tasks are. One trace then shows a request with all its work, and a sampler decides once. With
    `own_traces=True` each run begins its own trace, with only the link; use this for bulks of
    thousands of tasks, and for tasks that run days later. Source: OpenTelemetry semantic
    conventions, messaging spans.

    The span is current in the handler, on the event loop and in threads, and
    `current_task().context` names it, so log lines show it. The span of a run in a child process is
    in the worker, which outlives a killed child. The child sees it as a remote current span: spans
    that the handler makes are its children, if the module of the application sets up a tracer
    provider at import. These spans are lost if the child is killed before they are exported, and
    attributes set on the current span in the child are always lost.

    A run fails its span when it raises anything but Snooze, or exceeds its timeout.
    `fairlead.stopped` marks a run stopped by the shutdown of a worker or by a person, which is no
    failure. A return value that is not JSON is detected after the span.
    """

    def __init__(
        self, tracer_provider: TracerProvider | None = None, *, own_traces: bool = False
    ) -> None:
        """`tracer_provider`: default is that of the process."""
        self._tracer = trace.get_tracer("fairlead", tracer_provider=tracer_provider)
        self._own_traces = own_traces

    @contextmanager
    def submission(self, submission: Submission) -> Iterator[None]:
        """See `RunInterceptor.submission`."""
        drafts = submission.drafts
        queue = _common({draft.handler.queue for draft in drafts})
        about: dict[str, AttributeValue] = {**_SUBMIT}
        if queue is not None:
            about["messaging.destination.name"] = queue
        if len(drafts) != 1:
            about["messaging.batch.message_count"] = len(drafts)
        if (name := _common({draft.handler.name for draft in drafts})) is not None:
            about["fairlead.task.name"] = name
        if (key := _common({draft.options.fairness_key for draft in drafts})) is not None:
            about["fairlead.fairness_key"] = key
        with self._tracer.start_as_current_span(
            f"submit {queue}" if queue is not None else "submit",
            kind=SpanKind.PRODUCER,
            attributes=about,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            if carrier := _current_carrier():
                submission.drafts = _carrying(drafts, carrier, span)
            try:
                yield
            except BaseException as error:
                _fail(span, error)
                raise
            if len(submission.handles) == 1:
                span.set_attribute("messaging.message.id", submission.handles[0].id)
                span.set_attribute("fairlead.is_new", submission.handles[0].is_new)

    @contextmanager
    def running(self, task: CurrentTask) -> Iterator[None]:
        """See `RunInterceptor.running`."""
        given = _carried(task.context)
        span = self._tracer.start_span(
            f"run {task.queue}",
            NOWHERE if self._own_traces else given,
            SpanKind.CONSUMER,
            {
                **_RUN,
                "messaging.destination.name": task.queue,
                "messaging.message.id": task.id,
                "fairlead.task.name": task.name,
                "fairlead.attempt": task.attempt,
                "fairlead.fairness_key": task.fairness_key,
                "queue.pickup_delay_ms": task.pickup_delay * 1000,
            },
            _links(given),
        )
        token = context.attach(trace.set_span_in_context(span, given))
        try:
            if carrier := _current_carrier():
                for field in propagate.get_global_textmap().fields:
                    task.context.pop(field, None)
                task.context.update(carrier)
            yield
        except BaseException as error:
            _judge(span, task, error)
            raise
        else:
            _judge(span, task, None)
        finally:
            context.detach(token)
            span.end()

    @contextmanager
    def in_child(self, task: CurrentTask) -> Iterator[None]:
        """See `RunInterceptor.in_child`."""
        token = context.attach(_carried(task.context))
        try:
            yield
        finally:
            context.detach(token)


def _common(values: set[str]) -> str | None:
    return values.pop() if len(values) == 1 else None


def _carrying(drafts: Sequence[Draft], carrier: Mapping[str, str], span: Span) -> list[Draft]:
    """Return the drafts with the carrier in their context maps; drafts that shared options share
    the changed ones."""
    changed: dict[int, Options] = {}
    carrying = []
    for draft in drafts:
        options = changed.get(id(draft.options))
        if options is None:
            together = _with_carrier(draft.options.context, carrier, span)
            options = changed[id(draft.options)] = draft.options.changed({"context": together})
        carrying.append(Draft(draft.handler, draft.args, draft.kwargs, options, draft.id))
    return carrying


def _judge(span: Span, task: CurrentTask, error: BaseException | None) -> None:
    """Set the status of a span from the end of its run."""
    if task.cancel_reason is not None:  # its result is dropped
        span.set_attribute("fairlead.stopped", task.cancel_reason)
        if task.cancel_reason == CancelReason.TIMEOUT:
            span.set_attribute("error.type", "fairlead.errors.TaskTimeout")
            span.set_status(Status(StatusCode.ERROR, "the run was stopped by its timeout"))
    elif isinstance(error, Snooze):
        span.add_event("snoozed", {"until": error.until.isoformat()})
    elif error is not None and not isinstance(error, CancelledError):
        _fail(span, error)


def _current_carrier() -> dict[str, str]:
    """Return the current span and baggage as the propagator writes them; empty without either."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier


def _carried(carrier: Mapping[str, str]) -> Context:
    """Return a context with the span and baggage of a carrier, and nothing of the current
    context."""
    return propagate.extract(carrier, NOWHERE)


def _links(carrier: Context) -> list[Link]:
    """Return a link to the span of a context, if it has one."""
    span = trace.get_current_span(carrier).get_span_context()
    return [Link(span)] if span.is_valid else []


def _with_carrier(
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
        for link in _links(_carried(given)):
            span.add_link(link.context)
    return {**carrier, **given}


def _fail(span: Span, error: BaseException) -> None:
    """Record the exception, and mark the span as failed."""
    kind = type(error)
    span.set_attribute(
        "error.type", f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    )
    span.record_exception(error)
    span.set_status(Status(StatusCode.ERROR, str(error)))
