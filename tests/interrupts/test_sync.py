"""Blocking calls, interrupted wherever CPython may run a signal handler."""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING

import pytest

from tests.interrupts.cases import CASES
from tests.interrupts.points import Struck, StruckError
from tests.interrupts.stage import interrupt

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.interrupts.stage import Case
    from tests.support.sites import Site

EVERY = range(100_000)
"""More places than any call has: it ends where a call does."""
FEW = 3
PORTION = 60
WITHIN = 1_500
"""About how many places the longest calls have."""

each_case = pytest.mark.parametrize(
    ("case", "kind"),
    [
        pytest.param(case, kind, id=f"{case.name}: {kind}", marks=[pytest.mark.slow] * case.slow)
        for case in CASES
        for kind in case.kinds
    ],
)


def check(
    site: Site, case: Case, kind: str, places: Iterable[int], exception: type[BaseException] = Struck
) -> None:
    found = interrupt(site, case, kind, places, exception)
    sys.stdout.write(f"{case.name}: {kind}: {found.places} places\n")
    assert found.told == []


def drawn(case: Case, kind: str, seed: int, number: int) -> list[int]:
    """Return some places; a call that is over before one of them ends there."""
    random_numbers = random.Random(f"{case.name} {kind} {seed}")
    # Many calls are shorter than the longest.
    return sorted({int(WITHIN * random_numbers.random() ** 2) for _ in range(number)})


@each_case
def test_some_places(site: Site, case: Case, kind: str) -> None:
    check(site, case, kind, drawn(case, kind, 0, FEW))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("hold.release", "lock"),
        ("hold.release", "own session"),
        ("hold.release", "semaphore"),
        ("close", "lock"),
    ],
)
def test_where_a_call_takes_over_a_hold(site: Site, name: str, kind: str) -> None:
    case = next(case for case in CASES if case.name == name)
    check(site, case, kind, range(0, 90, 2))


@pytest.mark.search
@each_case
def test_a_portion_of_all_places(site: Site, case: Case, kind: str, search_seed: int) -> None:
    check(site, case, kind, drawn(case, kind, search_seed + 1, PORTION))


@pytest.mark.long
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("exception", [Struck, StruckError])
@each_case
def test_every_place(site: Site, case: Case, kind: str, exception: type[BaseException]) -> None:
    check(site, case, kind, EVERY, exception)
