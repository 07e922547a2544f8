"""Calls on an event loop, cancelled wherever they await."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import anyio
import pytest

from tests.interrupts.async_cases import CASES
from tests.interrupts.async_stage import interrupt
from tests.interrupts.awaits import WAYS

if TYPE_CHECKING:
    from tests.interrupts.async_stage import Case
    from tests.support.sites import Site

EVERY = range(10_000)
"""More places than any call has: it ends where a call does."""
WORLDS = [(backend, way) for backend, ways in WAYS.items() for way in ways]
EACH = [(case, kind) for case in CASES for kind in case.kinds]


def check(site: Site, case: Case, kind: str, backend: str, way: str) -> None:
    found = anyio.run(interrupt, site, case, kind, way, EVERY, backend=backend)
    sys.stdout.write(f"{case.name}: {kind}: {found.places} places\n")
    assert found.told == []


@pytest.mark.parametrize(
    ("case", "kind", "backend", "way"),
    [
        pytest.param(case, kind, *world, id=f"{case.name}: {kind}: {' '.join(world)}")
        for number, (case, kind) in enumerate(EACH)
        for world in [WORLDS[number % len(WORLDS)]]
    ],
)
def test_every_place_in_one_world_each(site: Site, case: Case, kind: str, backend: str, way: str) -> None:
    check(site, case, kind, backend, way)


@pytest.mark.search
@pytest.mark.parametrize(("backend", "way"), [pytest.param(*world, id=" ".join(world)) for world in WORLDS])
@pytest.mark.parametrize(
    ("case", "kind"), [pytest.param(case, kind, id=f"{case.name}: {kind}") for case, kind in EACH]
)
def test_every_place_in_every_world(site: Site, case: Case, kind: str, backend: str, way: str) -> None:
    check(site, case, kind, backend, way)
