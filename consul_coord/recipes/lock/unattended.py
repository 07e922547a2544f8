"""Attempts that a background program makes, for nobody's thread or task.

Rules
- Their holds belong to the program's object: so no thread or task has one already, or may release it.
- Once the client closes no new session is made: such a program learns of the closing when it looks.
- An attempt counts as a call of the client while it lasts. So closing waits for its end, and gives back what
  is granted meanwhile before it destroys the session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord.errors import ClientClosed
from consul_coord.io import Interrupt
from consul_coord.recipes.lock.attempt import LockAttempt

if TYPE_CHECKING:
    from consul_coord.recipes.hold.grant import Handle


class UnattendedAttempt(LockAttempt):
    """One attempt of a background program."""

    async def run(self) -> Handle:
        """Get what is wanted, or raise why not. Raises ClientClosed where the client closes already."""
        call, calls = Interrupt(), self.client.calls
        try:
            calls.enter(call)
            return await super().run()
        finally:
            calls.pop(call, None)
            calls.left()

    def _owner(self) -> object:
        return None

    async def _need_session(self) -> None:
        if self.client.closing.is_set():
            raise ClientClosed
        await super()._need_session()
