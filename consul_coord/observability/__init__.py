"""Observers for OpenTelemetry and Prometheus, and for several observers at once.

Rules
- ``measures`` defines once what is counted and when; ``otel`` and ``prometheus`` only hand it on.
- Their libraries are imported when an observer is asked for, and not before. For a missing one, the
  error names the extra that brings it.
- Nothing here changes a client's work: an error that an observer raises is only logged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord.extras import needs
from consul_coord.lazy import lazily as _lazily
from consul_coord.models import _validate

if TYPE_CHECKING:
    from consul_coord.events import Event, Observer
    from consul_coord.observability.otel import OpenTelemetryObserver
    from consul_coord.observability.prometheus import PrometheusObserver
else:
    __getattr__, __dir__ = _lazily(
        __name__,
        {"otel": "OpenTelemetryObserver", "prometheus": "PrometheusObserver"},
        loading=lambda name: needs(name.rpartition(".")[2]),
    )

__all__ = ["Observers", "OpenTelemetryObserver", "PrometheusObserver"]


class Observers:
    """Hands every event to several observers, in their order.

    An error in one keeps the event from none of the others. It is raised at the end, as an ExceptionGroup.
    Raises InvalidArgument for an observer without a plain method ``on_event``.
    """

    def __init__(self, *observers: Observer) -> None:
        for place, observer in enumerate(observers):
            name = f"observers[{place}]"
            if not hasattr(observer, "on_event"):
                _validate.refuse_kind(name, observer, "an object with a method on_event()")
            _validate.has_method(name, observer, "on_event")
            _validate.plain(**{f"{name}.on_event": observer.on_event})
        self._observers = observers

    def on_event(self, event: Event) -> None:
        """Hand an event on."""
        errors: list[Exception] = []
        for observer in self._observers:
            try:
                observer.on_event(event)
            except Exception as error:  # noqa: BLE001 - raised when all have been told
                errors.append(error)
        if errors:
            raise ExceptionGroup("observers failed", errors)

    def __repr__(self) -> str:
        return f"Observers({', '.join(map(repr, self._observers))})"
