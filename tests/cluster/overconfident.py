"""Workers with a planted fault: they never look whether they still have what they got.

``python -m proof.chaos --worker tests.cluster.overconfident`` must find them.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from proof.chaos.diary import Diary
from proof.chaos.worker import main

if TYPE_CHECKING:
    from consul_coord.recipes.hold.view import HoldView


class Overconfident(Diary):
    """A worker that believes in its hold until it has no more use for it."""

    def believes(self, hold: HoldView) -> bool:
        return True

    def until(self, hold: HoldView) -> float | None:
        return None


if __name__ == "__main__":
    main(sys.argv[1], diary=Overconfident)
