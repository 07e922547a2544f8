"""Observers together, and what a missing library is told by."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord import InvalidArgument, events
from consul_coord.observability import Observers, OpenTelemetryObserver, PrometheusObserver

if TYPE_CHECKING:
    from collections.abc import Callable

RENEWED = events.Renewed("s", 1.0)


class Listener:
    def __init__(self, error: Exception | None = None) -> None:
        self.seen: list[events.Event] = []
        self.error = error

    def on_event(self, event: events.Event) -> None:
        self.seen.append(event)
        if self.error is not None:
            raise self.error


def test_each_gets_every_event_whatever_the_others_raise() -> None:
    listeners = [Listener(), Listener(ValueError("one")), Listener(KeyError("two")), Listener()]
    with pytest.raises(ExceptionGroup) as caught:
        Observers(*listeners).on_event(RENEWED)
    assert caught.value.exceptions == (listeners[1].error, listeners[2].error)
    assert [listener.seen for listener in listeners] == [[RENEWED]] * 4


def test_all_well_raises_nothing() -> None:
    Observers(Listener(), Listener()).on_event(RENEWED)


@pytest.mark.parametrize(
    ("name", "library", "extra"),
    [
        ("OpenTelemetryObserver", "opentelemetry", "otel"),
        ("PrometheusObserver", "prometheus_client", "prometheus"),
    ],
)
def test_libraries_wait_until_they_are_asked_for_and_a_missing_one_is_told(
    name: str, library: str, extra: str
) -> None:
    script = (
        "import sys\n"
        "import consul_coord.observability as o\n"
        f"assert {library!r} not in sys.modules\n"
        f"sys.modules[{library!r}] = None\n"
        f"try:\n    o.{name}\n"
        f"except ModuleNotFoundError as error:\n    assert \"'consul-coord[{extra}]'\" in str(error), error\n"
        "else:\n    sys.exit('not told')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr


class Awaited:
    async def on_event(self, event: events.Event) -> None:
        raise AssertionError


@pytest.mark.parametrize("odd", [None, 5, Observers, Awaited()], ids=["None", "5", "a class", "a coroutine"])
def test_what_can_not_be_told_anything_is_refused(odd: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"observers\[1\]"):
        Observers(Observers(), odd)


@pytest.mark.parametrize("kind", [PrometheusObserver, OpenTelemetryObserver])
@pytest.mark.parametrize("odd", [5, "team", Awaited().on_event])
def test_a_group_is_a_plain_function(kind: Callable[..., object], odd: Any) -> None:
    with pytest.raises(InvalidArgument, match="group"):
        kind(group=odd)
