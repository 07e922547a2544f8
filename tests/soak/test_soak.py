"""Under constant load nothing grows, and after it nothing is left.

The long form takes 30 minutes, or as many as CONSUL_COORD_SOAK_MINUTES says.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.soak.flatness import BOUNDS, trends
from tests.soak.load import SAMPLES, WORKERS

if TYPE_CHECKING:
    from collections.abc import Callable

MINUTES: Final = float(os.environ.get("CONSUL_COORD_SOAK_MINUTES", "30"))
_SHORT: Final = 12.0
_GRACE: Final = 60.0
LEFT: Final = {"threads", "files", "sockets", "tasks", "sessions", "pending_cleanup"}
"""What must be gone once both clients are closed. Keys of locks stay: they were somebody's before, too."""
STEADY: Final = {
    "threads": 11.0,
    "files": 5.0,
    "sockets": 20.0,
    "tasks": 14.0,
    "sessions": 2.0,
    "keys": 4.0,
    "pending_cleanup": 0.0,
    "blocks": 150_000.0,
    "memory_kib": 30_000.0,
}


def _soak(address: str, seconds: float) -> None:
    told = subprocess.run(
        [sys.executable, "-m", "tests.soak.load", address, str(seconds)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=seconds + _GRACE,
        check=True,
    )
    lines: list[dict[str, Any]] = [json.loads(line) for line in told.stdout.splitlines()]
    samples = [line["figures"] for line in lines if line["kind"] == "sample"]
    (left,) = (line["figures"] for line in lines if line["kind"] == "left")
    (cycles,) = (line["figures"] for line in lines if line["kind"] == "cycles")
    (failures,) = (line["figures"] for line in lines if line["kind"] == "failures")

    measured = trends(samples)
    tenths = [f"{sample['memory_kib']:.0f}" for sample in samples[:: SAMPLES // 10]]
    heading = (
        f"{seconds:.0f} s, cycles: {json.dumps(cycles)}",
        f"memory, KiB, at each tenth of the run: {', '.join(tenths)}",
        "",
        "| figure | early | late | highest | may grow by |",
        "|---|---|---|---|---|",
    )
    sys.stdout.write("\n".join((*heading, *map(str, measured), "")))
    assert failures == {}
    assert len(samples) == SAMPLES
    assert {name for name in WORKERS if cycles.get(name, 0) > seconds / 10} == WORKERS
    assert [trend for trend in measured if not trend.is_flat] == []
    assert {name: left[name] for name in LEFT if left[name] > 0} == {}


@pytest.mark.slow
def test_nothing_grows_under_load(agent_address: str) -> None:
    _soak(agent_address, _SHORT)


@pytest.mark.long
@pytest.mark.timeout(MINUTES * 60 + 2 * _GRACE)
def test_nothing_grows_under_load_for_long(agent_address: str) -> None:
    _soak(agent_address, MINUTES * 60)


@pytest.mark.parametrize("leaking", BOUNDS)
def test_a_leak_is_seen(leaking: str) -> None:
    step = 4 * BOUNDS[leaking] / SAMPLES
    samples = [STEADY | {leaking: STEADY[leaking] + number * step} for number in range(SAMPLES)]
    assert [trend.name for trend in trends(samples) if not trend.is_flat] == [leaking]


@pytest.mark.parametrize(
    "wobble",
    [
        pytest.param(lambda number: 5.0 * (number % 2), id="every second sample"),
        pytest.param(lambda number: 500.0 * (number < SAMPLES * 0.2), id="warming up"),
        pytest.param(lambda number: 500.0 * (number == SAMPLES - 1), id="once"),
    ],
)
def test_what_only_wobbles_is_flat(wobble: Callable[[int], float]) -> None:
    samples = [
        {name: figure + wobble(number) for name, figure in STEADY.items()} for number in range(SAMPLES)
    ]
    assert all(trend.is_flat for trend in trends(samples))
