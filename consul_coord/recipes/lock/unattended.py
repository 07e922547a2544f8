"""Attempts that a background program makes, for nobody's thread or task.

Rules
- Their holds belong to the program's object: so no thread or task has one already, or may release it.
- Once the client closes no new session is made: such a program learns of the closing when it looks.
"""

from __future__ import annotations

from consul_coord.errors import ClientClosed
from consul_coord.recipes.lock.attempt import LockAttempt


class UnattendedAttempt(LockAttempt):
    """One attempt of a background program."""

    def _owner(self) -> object:
        return None

    async def _need_session(self) -> None:
        if self.client.closing.is_set():
            raise ClientClosed
        await super()._need_session()
