"""Spans and metrics for OpenTelemetry, by its API (extra ``otel``); the application sets its SDK up.

Rules
- Two spans for each hold: ``consul_coord.acquire`` from asking to having, and ``consul_coord.hold`` from then
  until it is released or lost, linked to the first. Events come after the fact, so both are roots of their
  own, and have key, session and fence as attributes.
- A lost hold's span has the status ERROR and the reason. A renewal that failed and
  a foreign write in between are events of the span.
- An acquire that gave up has no span, because its caller has the error.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from opentelemetry import metrics, trace
from opentelemetry.context import Context

from consul_coord import events
from consul_coord._version import __version__
from consul_coord.models._validate import plain
from consul_coord.observability.measures import MEASURES, Book, labels_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.metrics import Meter, MeterProvider
    from opentelemetry.trace import Span, TracerProvider

    from consul_coord.events import Event
    from consul_coord.observability.measures import Grouping, Measure

_NAME = "consul_coord"
_NANOSECONDS = 1_000_000_000
_Attributes = dict[str, str | int]


class OpenTelemetryObserver:
    """Makes spans of holds, and metrics of events: ``consul_coord.holds``, ``consul_coord.lost``...

    ``tracer_provider`` and ``meter_provider``: None for the application's global ones. ``group``: gives the
    group for a key, which becomes the attribute ``group`` of the metrics about keys; it should know few
    groups. One observer may serve any number of clients.
    Raises InvalidArgument for a ``group`` that is no plain function.
    """

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        group: Grouping | None = None,
    ) -> None:
        self._tracer = trace.get_tracer(_NAME, __version__, tracer_provider)
        meter = metrics.get_meter(_NAME, __version__, meter_provider)
        self._add = {measure: _adder(measure, meter) for measure in MEASURES}
        plain(group=group)
        self._group = group
        self._book = Book()
        self._spans: dict[tuple[str, str, int], Span] = {}

    def on_event(self, event: Event) -> None:
        """Count an event, and begin or end a span."""
        for reading in self._book.read(event, time.monotonic()):
            self._add[reading.measure](reading.amount, labels_for(reading, self._group))
        match event:
            case events.Acquired():
                self._acquired(event)
            case events.HandedOver(key, session, fence):
                self._ended((key, session, fence))
            case events.Lost(key, session, fence, reason):
                self._ended((key, session, fence), reason=reason.value)
            case events.Released(key, session, fence, outcome):
                self._ended((key, session, fence), outcome=outcome.value)
            case events.Jeopardy(session, remaining, error):
                self._note(session, "jeopardy", {"remaining": f"{remaining:.3f}", "error": error})
            case events.Overwritten(_, session, index):
                self._note(session, "overwritten", {"modify_index": index})
            case _:
                pass

    def _acquired(self, event: events.Acquired) -> None:
        attributes: _Attributes = {
            f"{_NAME}.key": event.key,
            f"{_NAME}.session": event.session,
            f"{_NAME}.fence": event.fence,
        }
        now = time.time_ns()
        acquire = self._tracer.start_span(
            f"{_NAME}.acquire",
            context=Context(),
            attributes=attributes,
            start_time=now - int(event.waited * _NANOSECONDS),
        )
        acquire.end(now)
        self._spans[event.key, event.session, event.fence] = self._tracer.start_span(
            f"{_NAME}.hold",
            context=Context(),
            attributes=attributes,
            start_time=now,
            links=[trace.Link(acquire.get_span_context())],
        )
        hold = (event.key, event.session, event.fence)
        if not self._book.holds(*hold):
            self._ended(hold)  # its end was told before

    def _ended(
        self, hold: tuple[str, str, int], *, outcome: str | None = None, reason: str | None = None
    ) -> None:
        span = self._spans.pop(hold, None)
        if span is None:
            return
        if reason is not None:
            span.set_attribute(f"{_NAME}.reason", reason)
            span.set_status(trace.StatusCode.ERROR, f"lost: {reason}")
        if outcome is not None:
            span.set_attribute(f"{_NAME}.outcome", outcome)
        span.end()

    def _note(self, session: str, name: str, attributes: _Attributes) -> None:
        for (_, owner, _), span in self._spans.copy().items():  # clients have a thread each
            if owner == session:
                span.add_event(name, attributes)


def _adder(measure: Measure, meter: Meter) -> Callable[[float, dict[str, str]], None]:
    """Make the instrument of a measure, and return how something is added to it."""
    name = f"{_NAME}.{measure.name}"
    if measure.kind == "histogram":
        return meter.create_histogram(name, unit="s", description=measure.text).record
    make = meter.create_counter if measure.kind == "counter" else meter.create_up_down_counter
    return make(name, unit="1", description=measure.text).add
