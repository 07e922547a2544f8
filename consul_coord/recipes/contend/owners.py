"""The holds of one lock or semaphore object, by the thread or task that has them.

Rules
- ``release()`` of the object means the latest hold of the caller: each is *noted* here, by a weak reference.
- What ``acquire`` returns is *kept* here, too, for as long as that thread or task lives: its caller may drop
  it. What only an ended thread had is given back. The hold of a ``with`` block is kept by the block.
- Keeping is the last thing that an acquire does, in a line that calls nothing: CPython runs no signal handler
  within it. So a call that raises keeps nothing, and what nobody keeps is given back.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord.recipes.hold.grant import Handle


class Owners:
    """See the module."""

    def __init__(self) -> None:
        self._noted: dict[object, list[weakref.ref[Handle]]] = {}
        self._kept: dict[Handle, object] = {}

    def note(self, owner: object, handle: Handle) -> None:
        """Remember a hold as its owner's latest, for as long as something keeps it."""
        before = [ref for ref in self._noted.get(owner, ()) if _is_wanted(ref())]
        self._noted[owner] = [*before, weakref.ref(handle)]

    def keep(self, owner: object, handle: Handle) -> None:
        """Keep a hold while its owner lives; the last thing that an acquire does."""
        handle.grant.depth += handle.again
        self._kept[handle] = owner

    def latest(self, owner: object) -> Handle | None:
        """Return the owner's latest hold that it is not done with."""
        for ref in reversed(self._noted.get(owner, ())):
            handle = ref()
            if handle is not None and not handle.grant.left:
                return handle
        return None

    def forget_ended(self, is_over: Callable[[object], bool]) -> None:
        """Forget the holds of owners that have ended, and what living ones are done with."""
        for handle, owner in list(self._kept.items()):
            if handle.grant.left or is_over(owner):
                self._kept.pop(handle, None)
        for owner, refs in list(self._noted.items()):
            if not any(_is_wanted(ref()) for ref in refs):
                self._noted.pop(owner, None)


def _is_wanted(handle: Handle | None) -> bool:
    return handle is not None and not handle.grant.left
