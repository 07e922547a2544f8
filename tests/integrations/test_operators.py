"""The pages for operators: their commands on a lock that is stuck, their alarms held against the metrics."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from consul_coord import Client, Hold, Lock, LossReason, SessionSpec
from consul_coord.observability import PrometheusObserver
from consul_coord.observability.measures import MEASURES
from tests.integrations import pages

PATIENCE = 90.0


def shell(commands: str, address: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run commands of a page as they stand; ``consul-coord`` is this environment's."""
    return subprocess.run(
        ["bash", "-euc", commands],
        env=pages.environment(address, more),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@pytest.mark.slow
def test_a_stuck_lock_is_found_and_taken(address: str) -> None:
    # A key of its own: what is destroyed here leaves a lock-delay on the agent.
    who, will, take, by_hand, doctor = (
        block.replace("jobs/nightly", "jobs/stuck") for block in pages.blocks("stuck-lock", "sh")
    )
    got: list[Hold] = []
    with (
        Client(address=address, session=SessionSpec(lock_delay=0, allow_unbounded=True)) as hung,
        Client(address=address) as waiting,
    ):
        stuck = Lock(hung, "jobs/stuck", value="host-7 pid 42").acquire(timeout=PATIENCE)
        waiter = threading.Thread(
            target=lambda: got.append(Lock(waiting, "jobs/stuck").acquire(timeout=PATIENCE))
        )
        waiter.start()
        try:
            seen = shell(who, address)
            assert seen.returncode == 0, seen.stderr
            assert "host-7 pid 42" in seen.stdout
            assert stuck.session in seen.stdout
            tried = shell(will, address)
            assert tried.returncode == 75
            assert stuck.session in tried.stdout
            assert "place 2 in the queue" in tried.stderr
            refused = shell(take, address, SESSION="00000000-0000-4000-8000-000000000009")
            assert refused.returncode == 1
            assert stuck.is_held
            taken = shell(take, address, SESSION=stuck.session)
            assert taken.returncode == 0, taken.stderr
        finally:
            waiter.join(PATIENCE)
        assert got[0].fence > stuck.fence
        assert stuck.lost.wait(PATIENCE)
        assert stuck.reason in (LossReason.RELEASED_BY_OTHER, LossReason.TAKEN_OVER)  # as it looks, and when
        destroyed = shell(by_hand, address, SESSION=got[0].session)
        assert destroyed.stdout.strip() == "true", destroyed.stderr
        assert got[0].lost.wait(PATIENCE)
        delayed = shell(will.splitlines()[1], address)
        assert delayed.returncode == 75
        assert "lock-delay" in delayed.stderr
        with Lock(hung, "jobs/other").hold(timeout=PATIENCE) as other:
            held = shell(will.splitlines()[1].replace("stuck", "other"), address)
            assert "held by" in held.stderr
            assert f"session {other.session})" in held.stderr
    looked = shell(doctor, address)
    assert looked.returncode == 0, looked.stdout + looked.stderr


def test_a_key_that_is_no_lock_has_its_own_code(address: str) -> None:
    with Client(address=address) as client:
        client.kv.put("jobs/nightly", "a value", flags=7)
    (_, try_it) = pages.blocks("stuck-lock", "sh")[1].splitlines()
    tried = shell(try_it, address)
    assert tried.returncode == 65, tried.stderr
    assert "exit code 65" in pages.text_of("stuck-lock")
    with Client(address=address) as client:
        client.kv.delete("jobs/nightly")


@pytest.fixture
def alarms() -> Any:
    (text,) = pages.blocks("monitoring", "yaml")
    return yaml.safe_load(text)["groups"][0]["rules"]


def test_the_alarms_ask_for_metrics_that_there_are(alarms: Any) -> None:
    registry = CollectorRegistry()
    PrometheusObserver(registry=registry, group=lambda key: key)
    offered = {name for metric in registry.collect() for name in names_of(metric.name, metric.type)}
    asked = {name for rule in alarms for name in re.findall(r"consul_coord_\w+", rule["expr"])}
    assert len(asked) >= 6
    assert asked <= offered
    assert len({rule["alert"] for rule in alarms}) == len(alarms)


def names_of(name: str, kind: str) -> set[str]:
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}.get(kind, ("",))
    return {name + suffix for suffix in suffixes}


def test_the_labels_of_the_alarms_are_those_of_the_metrics(alarms: Any) -> None:
    labels = {label for measure in MEASURES for label in measure.labels} | {"group", "le"}
    used = {
        label.strip()
        for rule in alarms
        for group in re.findall(r"by \(([^)]*)\)", rule["expr"])
        for label in group.split(",")
    } | {label for rule in alarms for label in re.findall(r"\{(\w+)=", rule["expr"])}
    assert used == {"group", "le", "event"}
    assert used <= labels


def test_metrics_named_in_the_text_exist() -> None:
    registry = CollectorRegistry()
    PrometheusObserver(registry=registry, group=lambda key: key)
    offered = {metric.name for metric in registry.collect()}
    assert "consul_coord_hold_duration_seconds" in offered
    assert "consul_coord_hold_duration_seconds" in pages.text_of("monitoring")


def test_the_pages_find_this_environments_command() -> None:
    assert (Path(sys.executable).parent / "consul-coord").exists()
