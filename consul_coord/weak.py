"""A set that keeps nothing alive, and runs no code when something dies.

``weakref.WeakSet`` has a callback for that, written in Python. A signal handler may run there, and the
interpreter drops what it raises, such as a KeyboardInterrupt. Here the dead are taken out at the next look.
"""

from __future__ import annotations

import weakref
from typing import Generic, TypeVar

T = TypeVar("T")

_FEW = 16


class Alive(Generic[T]):
    """The objects that were added and are still kept by something else. From any thread."""

    __slots__ = ("_look_at", "_refs")

    def __init__(self) -> None:
        self._refs: dict[weakref.ref[T], None] = {}
        self._look_at = _FEW
        """With so many references the dead are taken out: adding costs the same however many there are."""

    def add(self, one: T) -> None:
        """Add something that has an identity of its own."""
        self._refs[weakref.ref(one)] = None
        if len(self._refs) > self._look_at:
            self._look_at = 2 * len(self.all()) + _FEW

    def discard(self, one: T) -> None:
        """Take something out, if it is in."""
        self._refs.pop(weakref.ref(one), None)

    def all(self) -> list[T]:
        """Return what is alive, in the order in which it was added."""
        found: list[T] = []
        for ref in list(self._refs):
            one = ref()
            if one is None:
                self._refs.pop(ref, None)
            else:
                found.append(one)
        return found
