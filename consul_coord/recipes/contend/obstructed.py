"""What stands in the way of an attempt, and telling of it when it changes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from consul_coord.events import Waiting
from consul_coord.models import Blocker

if TYPE_CHECKING:
    from consul_coord.errors import ConsulCoordError
    from consul_coord.io import IO
    from consul_coord.models import BlockerKind


class Obstructed(ABC):
    """An attempt to get something, and why it has not got it yet."""

    io: IO
    blocker: Blocker = Blocker("unreachable")
    cause: ConsulCoordError | None = None
    """What the server or the network said, where that is in the way."""
    _told: tuple[BlockerKind, int | None] | None = None

    @property
    @abstractmethod
    def wanted(self) -> str:
        """What is wanted, as the user named it."""

    def _block(
        self,
        kind: BlockerKind,
        *,
        session: str | None = None,
        position: int | None = None,
        cause: ConsulCoordError | None = None,
    ) -> None:
        """Take note of what is in the way, and tell of it when it is something else than before."""
        self.blocker = Blocker(kind, session, position)
        self.cause = cause
        if self._told != (kind, position):
            self._told = (kind, position)
            self.io.emit(Waiting(self.wanted, self.blocker))
