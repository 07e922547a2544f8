"""The part of a client that an attempt needs: the lower rooms, and nothing of the client itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord.io import Calls, Host, Signal
    from consul_coord.models import SessionSpec
    from consul_coord.recipes.cleanup.reaper import Reaper
    from consul_coord.recipes.contend.queue import QueueMemory
    from consul_coord.recipes.contend.tickets import Tickets
    from consul_coord.recipes.hold.holds import Holds, Latest
    from consul_coord.recipes.session.keeping import Sessions, SessionSource
    from consul_coord.recipes.session.pool import SessionPools
    from consul_coord.recipes.watch.engine import Watches
    from consul_coord.weak import Alive


class Standing(Protocol):
    """A candidate that was started."""

    @property
    def problem(self) -> Exception | None:
        """The problem of this moment."""
        ...


class Owners(Protocol):
    """The holds of one object, by the thread or task that has them."""

    def forget_ended(self, is_over: Callable[[object], bool]) -> object:
        """Forget the holds of owners that have ended."""
        ...


class Shared(Protocol):
    """The state that the recipes of one client share."""

    host: Host
    name: bytes
    """The value of keys whose user gives none."""
    timeout: float
    """Seconds that one request may take."""
    closing: Signal
    """Raised when the client closes."""
    sessions: Sessions
    pools: SessionPools
    holds: Holds
    tickets: Tickets
    reaper: Reaper
    watches: Watches
    queue_memory: QueueMemory
    readable: Latest[float]
    """Names that not every release of Consul takes, and when this one let them be read."""
    calls: Calls
    """The waiting calls."""
    owners: Alive[Owners]
    """The holders of each object, swept from time to time."""
    standing: dict[Standing, None]
    """The candidates that were started, and not stopped."""

    def has_only_this_call(self) -> bool:
        """Return whether the client holds nothing, stands for nothing, and no other call of it waits."""
        ...

    def source(self, spec: SessionSpec | str | None) -> SessionSource:
        """Return where a lock gets its session from; one of its own ends when nobody refers to its source."""
        ...

    def attend(self) -> None:
        """Have the register swept while anything is entered."""
        ...
