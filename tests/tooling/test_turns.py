"""One process collects the tests first. Threads stand for processes here: each opens the file itself."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from tests.support.turns import first_goes_ahead

if TYPE_CHECKING:
    from pathlib import Path

OTHERS = 3


def test_the_others_enter_together_when_the_first_has_left(tmp_path: Path) -> None:
    (file := tmp_path / "turn").touch()
    together = threading.Barrier(OTHERS)
    order: list[str] = []

    def other() -> None:
        with first_goes_ahead(file):
            order.append("other")
            together.wait(timeout=30)

    with ThreadPoolExecutor(OTHERS) as pool:
        with first_goes_ahead(file):
            others = [pool.submit(other) for _ in range(OTHERS)]
            assert not any(each.done() for each in others)
            threading.Event().wait(0.05)  # for those that would not wait
            order.append("first")
        for each in others:
            each.result(timeout=30)
    assert order == ["first", *["other"] * OTHERS]
