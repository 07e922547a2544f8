"""What the blocking and the async client have in common.

Settings, the shared state, and what it tells without I/O.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from consul_coord.clock import SystemClock
from consul_coord.config import Settings
from consul_coord.errors import InvalidArgument
from consul_coord.models import SessionSpec

if TYPE_CHECKING:
    from os import PathLike

    from consul_coord.clock import Clock
    from consul_coord.config import TLSConfig
    from consul_coord.events import Observer
    from consul_coord.models import Stats
    from consul_coord.recipes.client import ClientState

C = TypeVar("C", bound="BaseClient")


class BaseClient:
    """A client but for its I/O."""

    core: ClientState
    """What its recipes share, for this package's own use; another one in a forked child."""

    def __init__(
        self,
        *,
        address: str | None,
        token: str | None,
        token_file: PathLike[str] | str | None,
        http_auth: tuple[str, str] | None,
        datacenter: str | None,
        namespace: str | None,
        partition: str | None,
        tls: TLSConfig | None,
        timeout: float,
        session: SessionSpec | None,
        observer: Observer | None,
        clock: Clock | None,
    ) -> None:
        self._settings = Settings.resolve(
            address=address,
            token=token,
            token_file=token_file,
            http_auth=http_auth,
            datacenter=datacenter,
            namespace=namespace,
            partition=partition,
            tls=tls,
            timeout=timeout,
        )
        self._spec = session or SessionSpec()
        self._observer = observer
        self.clock: Clock = clock or SystemClock()

    def now(self) -> float:
        """Return the lease clock's time in seconds: the one that deadlines are on."""
        return self.clock.now()

    def healthy(self, *, slack: float = 0.0) -> bool:
        """Return False when a live hold has less than ``slack`` seconds of its lease left.

        No I/O. For liveness probes.
        """
        return self.core.healthy(slack)

    def stats(self) -> Stats:
        """Return the counters since the client was made."""
        return self.core.stats()

    @property
    def pending_cleanup(self) -> int:
        """How many things may still have to be undone on the server.

        Waiting for it to answer, or for late requests.
        """
        return self.core.reaper.pending

    def __reduce__(self) -> tuple[Any, ...]:
        name = type(self).__name__
        message = f"{name} can't be pickled: make one in each process, and locks from it; that costs no I/O"
        raise TypeError(message)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._settings.address}>"


def require(client: object, kind: type[C], user: str) -> C:
    """Return a client that is of the kind that ``user``, a public name, works with.

    The other kind's calls would do nothing, or not be undone: a block would run without its lock. Raises
    InvalidArgument.
    """
    if isinstance(client, kind):
        return client
    message = f"{user} needs {_a(kind)}, not {_a(type(client))}"
    if isinstance(client, BaseClient):
        message += ": blocking code uses Client and Lock, a coroutine AsyncClient and AsyncLock, and so on"
    raise InvalidArgument(message)


def _a(kind: type) -> str:
    return f"{'an' if kind.__name__[0] in 'AEIOaeio' else 'a'} {kind.__name__}"
