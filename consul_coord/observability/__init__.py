"""Observers for what others collect: OpenTelemetry, Prometheus, and several observers at once.

Rules
- ``measures`` says what is counted and when, once for all; ``otel`` and ``prometheus`` only hand it on.
- Their libraries are imported when an observer is asked for, and not before. A missing one is told by the
  extra that brings it.
- Nothing here changes what a client does: what an observer raises is logged, and that is all.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from consul_coord.extras import needs

if TYPE_CHECKING:
    from consul_coord.events import Event, Observer
    from consul_coord.observability.otel import OpenTelemetryObserver
    from consul_coord.observability.prometheus import PrometheusObserver

__all__ = ["Observers", "OpenTelemetryObserver", "PrometheusObserver"]

_LAZY = {
    "OpenTelemetryObserver": ("consul_coord.observability.otel", "otel"),
    "PrometheusObserver": ("consul_coord.observability.prometheus", "prometheus"),
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    module, extra = _LAZY[name]
    with needs(extra):
        return getattr(import_module(module), name)


class Observers:
    """Hands every event to several observers, in their order.

    What one raises keeps it from none of the others; it is raised at the end, as an ExceptionGroup.
    """

    def __init__(self, *observers: Observer) -> None:
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
