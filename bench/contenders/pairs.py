"""What the contenders of the uncontended pair have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TypeAlias

Pairs: TypeAlias = Callable[[int], Sequence[float]]
"""Does so many pairs of acquire and release; returns the seconds that each took."""


def timed(pair: Callable[[], object]) -> Pairs:
    """Return what times one call of ``pair`` after the other."""

    def run(count: int) -> Sequence[float]:
        times: list[float] = []
        for _ in range(count):
            began = perf_counter()
            pair()
            times.append(perf_counter() - began)
        return times

    return run
