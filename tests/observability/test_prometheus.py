"""The metrics of real holds, as Prometheus scrapes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from consul_coord import InvalidArgument, events
from consul_coord.observability import PrometheusObserver
from consul_coord.observability.measures import MEASURES

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord import Observer


def scraped(registry: CollectorRegistry) -> dict[tuple[str, ...], float]:
    """Return every sample by its name and the values of its labels."""
    text = generate_latest(registry).decode()
    return {
        (sample.name.removeprefix("consul_coord_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_real_holds_are_measured(course: Callable[[Observer], None]) -> None:
    registry = CollectorRegistry()
    course(PrometheusObserver(registry=registry))
    found = scraped(registry)
    assert found["holds",] == 0
    assert found["leading",] == 0
    assert found["acquire_wait_seconds_count",] == 3
    assert found["lost_total", "session_gone"] == 1
    assert found["released_total", "released"] == 2
    assert found["hold_duration_seconds_count", "released"] == 2
    assert found["hold_duration_seconds_count", "lost"] == 1
    assert found["hold_duration_seconds_sum", "released"] > 0
    assert found["renewals_total",] >= 1
    assert found["events_total", "elected"] == 1
    assert not any("group/" in part for name in found for part in name), "keys are without number"


def test_keys_are_grouped_as_asked(course: Callable[[Observer], None]) -> None:
    registry = CollectorRegistry()
    course(PrometheusObserver(registry=registry, group=lambda key: key.partition("/")[0]))
    found = scraped(registry)
    assert found["holds", "group"] == 0
    assert found["lost_total", "group", "session_gone"] == 1


def test_two_observers_of_one_registry_need_names_of_their_own() -> None:
    registry = CollectorRegistry()
    PrometheusObserver(registry=registry)
    with pytest.raises(InvalidArgument, match="give one PrometheusObserver to all clients"):
        PrometheusObserver(registry=registry)
    other = PrometheusObserver(registry=registry, namespace="other")
    other.on_event(events.Renewed("s", 1.0))
    assert scraped(registry)["other_renewals_total",] == 1


def test_every_measure_has_a_collector() -> None:
    registry = CollectorRegistry()
    PrometheusObserver(registry=registry)
    names = {family.name for family in registry.collect()}
    assert len(names) == len(MEASURES)
    assert {name for name in names if name.endswith("_seconds")} == {
        "consul_coord_acquire_wait_seconds",
        "consul_coord_hold_duration_seconds",
    }


def test_histograms_have_the_buckets_that_were_asked_for() -> None:
    registry = CollectorRegistry()
    PrometheusObserver(registry=registry, buckets=[0.5, 2.0]).on_event(events.Acquired("k", "s", 7, 1.5))
    found = scraped(registry)
    buckets = {name[1]: value for name, value in found.items() if name[0] == "acquire_wait_seconds_bucket"}
    assert buckets == {"0.5": 0, "2.0": 1, "+Inf": 1}
