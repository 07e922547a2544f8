# Made from consul_coord/aio/session.py by `python tools/make_sync.py`: change that one.
"""A session that the user keeps himself, as blocking code sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord.base_client import Entered
from consul_coord.recipes.client import close_session
from consul_coord.recipes.session import handling as session_ops
from consul_coord.sync.hold import LossEvent

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from consul_coord.recipes.client import ClientState
    from consul_coord.recipes.session import keeping as sessions
    from consul_coord.sync.runner import Runner


class KeptSession(Entered):
    """A session that is renewed until it is closed or lost; ``client.keep_session`` makes it.

    Give its ``id`` as the ``session`` of the locks and elections that share it. A loss is final: open a new
    session then. Leaving it as a context manager closes it.
    """

    def __init__(self, runner: Runner, core: ClientState, kept: sessions.KeptSession) -> None:
        self._runner = runner
        self._core = core
        self._kept = kept

    @property
    def id(self) -> str:
        """Consul's id of the session."""
        return self._kept.id

    @property
    def lost(self) -> LossEvent:
        """The event to wait on for its loss; not set by ``close``."""
        return LossEvent(self._runner, self._kept)

    def remaining(self) -> float:
        """Return how many seconds it surely lives on without a renewal; no I/O."""
        return self._kept.lease.remaining(self._runner.now())

    def export(self) -> str:
        """Return a text with which ``client.keep_session(spec, resume=text)`` goes on, in any process.

        From now on neither ``close`` nor the client's end destroys the session or releases what it holds.
        Both last until a client resumes the session, or its TTL is over. Let only one client at a time use
        it: close this one first.
        Raises SessionNotFound when the session has ended.
        """
        return session_ops.export(self._kept)

    def close(self) -> None:
        """Release what it holds and destroy it, or only stop renewing it if it was exported.

        Does nothing if it has ended.
        """
        self._runner.finish(close_session, self._core, self._kept)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}: {self.remaining():.1f} s left>"
