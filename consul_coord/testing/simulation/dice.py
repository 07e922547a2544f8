"""Chance, from the seed: each part of a run has a stream of its own, so that one does not shift another's."""

from __future__ import annotations

import random
from typing import Self


class Dice(random.Random):
    """A stream of random numbers that belongs to one seed and one purpose."""

    def __new__(cls, seed: int, purpose: str) -> Self:  # noqa: ARG004 - random.Random would take just one
        """Make one, to be seeded after."""
        return super().__new__(cls)

    def __init__(self, seed: int, purpose: str) -> None:
        super().__init__(f"{seed}/{purpose}")

    def chance(self, part: float) -> bool:
        """Return True in ``part`` of all cases."""
        return self.random() < part
