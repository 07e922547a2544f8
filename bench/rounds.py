"""Running contenders in turns.

Rules
- Each contender is opened once and stays open, so that all are warm, and then runs one batch per round:
  A, B, C, A, B, C. What disturbs one round disturbs all of it.
- A contender that is ``Unavailable`` is left out and named; any other failure ends the run, since a figure
  that only sometimes comes about is none.
- Python's garbage is collected before each batch, never counted as one contender's and made by another.
"""

from __future__ import annotations

import gc
from statistics import median
from typing import TYPE_CHECKING, Protocol, TypeVar

from bench.bed import Unavailable
from bench.results import Figure, Skipped, Spread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager, ExitStack

    from bench.bed import Bed

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

MILLI = 1e3


class Contender(Protocol[T_co]):
    """Somebody who takes part in a measure."""

    @property
    def name(self) -> str:
        """What the report calls it."""
        ...

    def open(self, bed: Bed) -> AbstractContextManager[T_co]:
        """Get ready; what is entered runs the batches. Raises Unavailable."""
        ...


def open_all(
    stack: ExitStack, contenders: Iterable[Contender[T]], bed: Bed
) -> tuple[dict[str, T], tuple[Skipped, ...]]:
    """Open contenders until the stack ends; return those that are there by name, and the others."""
    opened: dict[str, T] = {}
    skipped: list[Skipped] = []
    for contender in contenders:
        try:
            opened[contender.name] = stack.enter_context(contender.open(bed))
        except Unavailable as error:
            skipped.append(Skipped(contender.name, str(error)))
    return opened, tuple(skipped)


def in_turns(
    opened: Mapping[str, T], batch: Callable[[str, T], Sequence[float]], *, rounds: int
) -> dict[str, list[list[float]]]:
    """Run ``batch`` for each contender in each round; return the samples by contender and round.

    One more round, before, is not counted.
    """
    samples: dict[str, list[list[float]]] = {name: [] for name in opened}
    for number in range(rounds + 1):
        for name, contender in opened.items():
            gc.collect()
            found = list(batch(name, contender))
            if number:
                samples[name].append(found)
    return samples


def figures(
    samples: Mapping[str, Sequence[Sequence[float]]],
    *,
    what: str,
    unit: str = "ms",
    scale: float = MILLI,
    base: str = "",
) -> tuple[Figure, ...]:
    """Sum up samples by contender and round, with ratios to the contender ``base``."""
    floor = samples.get(base)
    return tuple(
        Figure(
            contender=name,
            what=what,
            unit=unit,
            value=Spread.of([sample for one in rounds for sample in one], scale=scale),
            ratio=None if floor is None else _ratio(rounds, floor),
        )
        for name, rounds in samples.items()
    )


def _ratio(rounds: Sequence[Sequence[float]], floor: Sequence[Sequence[float]]) -> Spread:
    return Spread.of([median(one) / median(base) for one, base in zip(rounds, floor, strict=True)])
