"""Metrics for Prometheus, by its own client library (extra ``prometheus``)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from prometheus_client import REGISTRY, Counter, Gauge, Histogram

from consul_coord.errors import InvalidArgument
from consul_coord.models._validate import plain
from consul_coord.observability.measures import MEASURES, Book, labels_for, labels_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from prometheus_client import CollectorRegistry

    from consul_coord.events import Event
    from consul_coord.observability.measures import Grouping, Measure

BUCKETS = (0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 7200.0, 43200.0)
"""Seconds: from an uncontended acquire to a job of half a day."""


class PrometheusObserver:
    """Keeps the measures as collectors of a registry: ``consul_coord_holds``, ``consul_coord_lost_total``...

    ``registry``: None for the library's own. ``group``: gives the group for a key, which becomes the label
    ``group`` of what is about keys; it should know few groups. ``namespace``: what the names begin with. One
    observer may serve any number of clients; two in one registry need different namespaces.
    Raises InvalidArgument for a ``group`` that is no plain function, and for a namespace that is in use.
    """

    def __init__(
        self,
        *,
        registry: CollectorRegistry | None = None,
        group: Grouping | None = None,
        namespace: str = "consul_coord",
        buckets: Sequence[float] = BUCKETS,
    ) -> None:
        plain(group=group)
        self._group = group
        self._book = Book()
        place = REGISTRY if registry is None else registry
        try:
            adders = {measure: self._adder(measure, place, namespace, tuple(buckets)) for measure in MEASURES}
        except ValueError as error:
            if "Duplicated" not in str(error):
                raise
            message = (
                f"the registry has metrics of {namespace!r} already: give one PrometheusObserver to all "
                "clients, or give this one another registry or namespace"
            )
            raise InvalidArgument(message) from error
        self._add = adders

    def on_event(self, event: Event) -> None:
        """Count an event."""
        for reading in self._book.read(event, time.monotonic()):
            self._add[reading.measure](reading.amount, labels_for(reading, self._group))

    def _adder(
        self, measure: Measure, registry: CollectorRegistry, namespace: str, buckets: tuple[float, ...]
    ) -> Callable[[float, dict[str, str]], None]:
        """Make the collector of a measure, and return how something is added to it."""
        name, labels = measure.name.replace(".", "_"), labels_of(measure, self._group)
        if measure.kind == "counter":
            counter = Counter(name, measure.text, labels, namespace=namespace, registry=registry)
            return lambda amount, values: (counter.labels(**values) if labels else counter).inc(amount)
        if measure.kind == "level":
            gauge = Gauge(name, measure.text, labels, namespace=namespace, registry=registry)
            return lambda amount, values: (gauge.labels(**values) if labels else gauge).inc(amount)
        histogram = Histogram(
            name,
            measure.text,
            labels,
            namespace=namespace,
            unit="seconds",
            registry=registry,
            buckets=buckets,
        )
        return lambda amount, values: (histogram.labels(**values) if labels else histogram).observe(amount)
