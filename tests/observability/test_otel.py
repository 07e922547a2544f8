"""Spans and metrics of real holds, as OpenTelemetry's SDK has them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader, NumberDataPoint
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from consul_coord import LossReason, ReleaseOutcome, events
from consul_coord.observability import OpenTelemetryObserver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from consul_coord import Observer
    from consul_coord.observability.measures import Grouping


class Collected:
    """What an application's exporters get."""

    def __init__(self, group: Grouping | None = None) -> None:
        self._spans = InMemorySpanExporter()
        self._tracing = TracerProvider()
        self._tracing.add_span_processor(SimpleSpanProcessor(self._spans))
        self._reader = InMemoryMetricReader()
        self._metering = MeterProvider([self._reader])
        self.observer = OpenTelemetryObserver(
            tracer_provider=self._tracing, meter_provider=self._metering, group=group
        )

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._spans.get_finished_spans() if span.name == f"consul_coord.{name}"]

    def metrics(self) -> dict[tuple[str, ...], float]:
        """Return each value, of a histogram the count, by its name and the values of its attributes."""
        data = self._reader.get_metrics_data()
        assert data is not None
        found: dict[tuple[str, ...], float] = {}
        for metric in data.resource_metrics[0].scope_metrics[0].metrics:
            for point in metric.data.data_points:
                name = (
                    metric.name.removeprefix("consul_coord."),
                    *map(str, (point.attributes or {}).values()),
                )
                assert isinstance(point, HistogramDataPoint | NumberDataPoint)
                found[name] = point.count if isinstance(point, HistogramDataPoint) else point.value
        return found

    def close(self) -> None:
        self._metering.shutdown()
        self._tracing.shutdown()


@pytest.fixture
def collected() -> Iterator[Collected]:
    collected = Collected()
    yield collected
    collected.close()


def test_real_holds_are_measured(course: Callable[[Observer], None], collected: Collected) -> None:
    course(collected.observer)
    found = collected.metrics()
    assert found["holds",] == 0
    assert found["leading",] == 0
    assert found["acquire.wait",] == 3
    assert found["lost", "session_gone"] == 1
    assert found["released", "released"] == 2
    assert found["hold.duration", "released"] == 2
    assert found["renewals",] >= 1


def test_real_holds_are_spans(course: Callable[[Observer], None], collected: Collected) -> None:
    course(collected.observer)
    acquires, holds = collected.spans("acquire"), collected.spans("hold")
    assert len(acquires) == len(holds) == 3
    by_key = {str((span.attributes or {})["consul_coord.key"]): span for span in holds}
    lost = by_key.pop("group/lost")
    assert lost.status.status_code is StatusCode.ERROR
    assert (lost.attributes or {})["consul_coord.reason"] == "session_gone"
    for span in by_key.values():
        assert span.status.status_code is StatusCode.UNSET
        assert (span.attributes or {})["consul_coord.outcome"] == "released"
    assert {span.links[0].context.span_id for span in holds} == {
        span.context.span_id for span in acquires if span.context
    }
    assert all(span.parent is None for span in (*acquires, *holds))


def test_a_span_has_the_times_and_what_came_in_between(collected: Collected) -> None:
    told: tuple[events.Event, ...] = (
        events.Acquired("k", "s", 7, waited=2.0),
        events.Acquired("k2", "other", 8, waited=0.0),
        events.Jeopardy("s", 3.25, "no answer"),
        events.Overwritten("k", "s", 9),
        events.Lost("k", "s", 7, LossReason.EXPIRED),
        events.Released("k", "s", 7, ReleaseOutcome.ALREADY_LOST),
        events.Released("k2", "other", 8, ReleaseOutcome.RELEASED),
    )
    for event in told:
        collected.observer.on_event(event)
    waited = collected.spans("acquire")[0]
    assert waited.start_time is not None
    assert waited.end_time == waited.start_time + 2_000_000_000
    lost, released = collected.spans("hold")
    assert [event.name for event in lost.events] == ["jeopardy", "overwritten"]
    assert [dict(event.attributes or {}) for event in lost.events] == [
        {"remaining": "3.250", "error": "no answer"},
        {"modify_index": 9},
    ]
    assert released.events == ()


def test_a_hold_whose_end_is_told_first_leaves_no_span_open(collected: Collected) -> None:
    collected.observer.on_event(events.Lost("k", "s", 7, LossReason.EXPIRED))
    collected.observer.on_event(events.Acquired("k", "s", 7, waited=2.0))
    assert len(collected.spans("acquire")) == 1
    assert len(collected.spans("hold")) == 1, "ended, though there is nobody else to end it"


def test_another_clients_hold_keeps_no_event_from_its_span(collected: Collected) -> None:
    class Meddling(str):
        """A session id at whose comparison another client's thread has its turn."""

        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            collected.observer.on_event(events.Acquired(f"k{next(numbers)}", "other", 8, waited=0.0))
            return super().__eq__(other)

        __hash__ = str.__hash__

    numbers = itertools.count()
    for key in ("k1", "k2"):
        collected.observer.on_event(events.Acquired(key, "s", 7, waited=0.0))
    collected.observer.on_event(events.Jeopardy(Meddling("s"), 3.25, "no answer"))
    for key in ("k1", "k2"):
        collected.observer.on_event(events.Released(key, "s", 7, ReleaseOutcome.RELEASED))
    assert [[event.name for event in span.events] for span in collected.spans("hold")] == [["jeopardy"]] * 2


def test_keys_are_grouped_as_asked(course: Callable[[Observer], None]) -> None:
    collected = Collected(group=lambda key: key.partition("/")[0])
    course(collected.observer)
    assert collected.metrics()["lost", "session_gone", "group"] == 1
    collected.close()
