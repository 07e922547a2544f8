"""How a blocking client's programs run: each on its caller's thread, and the background on a loop thread.

Rules
- Nothing does I/O or starts a thread before it is needed. The loop thread starts with the first session or
  watch.
- ``close`` ends the calls that wait, in any thread, and does its own I/O where it is called.
- ``lifetime`` closes open clients at the end of the process. In a forked child the inherited holds are lost,
  and the client starts again, with sockets and sessions of its own.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from consul_coord.base_client import OUTAGES, BaseRunner, brief
from consul_coord.http.retry import ask
from consul_coord.io import Interrupt, run
from consul_coord.models import _validate
from consul_coord.recipes import client as coordinator
from consul_coord.sync import green, lifetime
from consul_coord.sync.driver import BlockingIO, ThreadHost

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord.base_client import Program
    from consul_coord.clock import Clock
    from consul_coord.config import Settings
    from consul_coord.events import Observer
    from consul_coord.http.agents import Agents
    from consul_coord.http.messages import Call
    from consul_coord.http.transport.base import AsyncTransport, Transport
    from consul_coord.io import IO
    from consul_coord.models import SessionSpec
    from consul_coord.recipes.client import ClientState

P = ParamSpec("P")
T = TypeVar("T")

CLOSE_TIMEOUT = 5.0
THREADS_END = 0.1
"""Seconds that a client's threads have to end when giving back took all the time of closing."""


class Runner(BaseRunner):
    """Carries out what is asked of a blocking client."""

    def __init__(
        self,
        settings: Settings,
        transport: Transport,
        background: Callable[[], AsyncTransport],
        *,
        kind: str,
        session: SessionSpec | None,
        observer: Observer | None,
        clock: Clock | None,
        name: str | None = None,
        agents: Agents | None = None,
    ) -> None:
        green.refuse()
        super().__init__(
            settings, kind=kind, session=session, observer=observer, clock=clock, name=name, agents=agents
        )
        self._transport = transport
        self._make_background = background
        self._begin()
        lifetime.begin(self)

    def _begin(self) -> None:
        """Make host and state: at first, and again in a forked child."""
        self._host = ThreadHost(
            clock=self._clock,
            observer=self._observer,
            background=self._make_background,
            foreground=self._transport,
        )
        self.core = self._new_state(self._host)
        self._io = BlockingIO(self._host, self._transport)
        """For what nothing interrupts."""
        self._transport.listen(partial(self.core.refused, self._settings.address))
        self._finalizer = weakref.finalize(self, _dropped, self._host, self.core, self._transport)
        self._closed_by = {}
        self._finalizer.atexit = False  # open clients are closed then, on the main thread

    def forked(self) -> None:
        """Leave the inherited state to the parent, without any I/O, and start again.

        Called in a forked child.
        """
        self._transport.forget()
        self._finalizer.detach()
        inherited = self.core
        self._begin()
        inherited.forked(self._host)

    def run(self, interrupt: Interrupt, program: Program[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a program that ``interrupt`` may end, on this thread; so may closing."""
        calls = self.core.calls
        try:
            calls.enter(interrupt)
            return run(program(BlockingIO(self._host, self._transport, interrupt=interrupt), *args, **kwargs))
        except OUTAGES as error:
            raise brief(error) from error.__cause__
        finally:
            calls.pop(interrupt, None)
            calls.left()

    def call(self, program: Program[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a program, on this thread."""
        try:
            return self.run(Interrupt(), program, *args, **kwargs)
        except OUTAGES as error:  # again, as ``run`` has its frames in it
            raise brief(error) from error.__cause__

    alone = call
    """Run a program that needs no background: here any program may be run, as what it needs starts then."""

    def finish(self, program: Program[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a program that gives something back, or only waits: also when the client is closed."""
        return run(program(self._io, *args, **kwargs))

    def perform(self, call: Call[T], /, *, timeout: float | None = None) -> T:
        """Carry out one endpoint's call, in ``timeout`` seconds; None for the client's own."""
        try:
            return self.run(Interrupt(), ask, call, timeout=self.seconds_for(timeout))
        except OUTAGES as error:
            raise brief(error) from error.__cause__

    @property
    def serving(self) -> str:
        """The address of the agent that serves, or of all that may."""
        current = None if self._agents is None else self._agents.current
        return self._settings.label if current is None else current.address

    def verify_agents(self) -> dict[str, str]:
        """Return, for each further agent, what speaks against using it; nothing if it is fit."""
        verify = getattr(self._transport, "verify", None)
        found: dict[str, str] = {} if verify is None else verify()
        return found

    def start(self) -> None:
        """Do nothing: the background starts when it is needed."""

    def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Give everything back and stop, in ``timeout`` seconds; harmless when done before."""
        timeout = _validate.span("timeout", timeout)
        mine = object()
        try:
            if self._closed_by.setdefault(None, mine) is mine:
                self._close(timeout)
        except BaseException:
            if self._closed_by.get(None) is mine:
                self._closed_by.clear()
            raise

    def _close(self, timeout: float) -> None:
        core = self.core
        core.begin_close()
        io = self._io
        deadline = io.now() + timeout
        run(coordinator.close(io, core, deadline=deadline))
        self._host.stop(timeout=max(THREADS_END, deadline - io.now()))
        run(coordinator.close_late(io, core, deadline=deadline))
        self._transport.close()
        self._finalizer.detach()


def _dropped(host: ThreadHost, core: ClientState, transport: Transport) -> None:
    """Close what a client had that nobody refers to any more.

    In the background, for this is the garbage collector.
    """
    core.begin_close()
    if list(core.sessions) or core.reaper.pending:

        async def close(io: IO) -> None:
            await coordinator.close(io, core, deadline=io.now() + CLOSE_TIMEOUT)
            host.stop(timeout=0)

        host.spawn(close, name="close a dropped client")
    else:
        host.stop(timeout=0)
    transport.close()
