"""The holds of one lock or semaphore object, by the thread or task that has them.

Rules
- ``release()`` of the object means the latest hold of the caller. So the object refers to a hold for as long
  as that thread or task lives, and no longer: ``forget_ended`` drops those of others. What only an ended
  thread had is given back then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord.recipes.hold.grant import Handle


class Owners:
    """See the module."""

    def __init__(self) -> None:
        self._held: dict[object, list[Handle]] = {}

    def keep(self, owner: object, handle: Handle) -> None:
        """Remember a hold as its owner's latest; one that the owner has already is entered once more.

        The last thing that an acquire does, with one operation that nothing can interrupt: a call that raises
        keeps nothing.
        """
        held = [one for one in self._held.get(owner, ()) if not one.grant.left]
        if handle in held:
            handle.grant.depth += 1
        else:
            self._held[owner] = [*held, handle]

    def latest(self, owner: object) -> Handle | None:
        """Return the owner's latest hold that it is not done with."""
        return next((one for one in reversed(self._held.get(owner, ())) if not one.grant.left), None)

    def forget_ended(self, is_over: Callable[[object], bool]) -> None:
        """Forget the holds of owners that have ended, and what living ones are done with."""
        for owner in list(self._held):
            handles = self._held.get(owner, ())
            if is_over(owner) or all(one.grant.left for one in handles):
                self._held.pop(owner, None)
