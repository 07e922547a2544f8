"""The latest values of keys that a client remembers: a bounded number, written by any thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord.recipes.hold import holds
from consul_coord.recipes.hold.holds import Latest

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest


class Shared(Latest[int]):
    """One that another thread writes to while the oldest key is looked for."""

    def __init__(self) -> None:
        super().__init__()
        self.others = ["x", "y"]

    def __iter__(self) -> Iterator[str]:
        keys = super().__iter__()
        if self.others:
            self[self.others.pop()] = 0
        return keys


def test_the_oldest_is_forgotten_although_another_thread_writes_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(holds, "MOST_REMEMBERED", 2)
    latest = Shared()
    for key in "abcd":
        latest.remember(key, 1)
    assert len(latest) == 2
    assert latest["d"] == 1
