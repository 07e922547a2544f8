"""The common part of the blocking and the async client.

A client is what users see of it; its runner does the work, and lives as long as anything that needs it.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Generic, NoReturn, ParamSpec, TypeVar

from consul_coord.clock import SystemClock
from consul_coord.errors import AcquireTimeout, InvalidArgument, TransportError
from consul_coord.http.failures import bare, next_step
from consul_coord.models import SessionSpec, WriteOptions, _validate
from consul_coord.models._validate import bytes_or_none
from consul_coord.models.session import check_spec
from consul_coord.recipes.client import ClientState

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from consul_coord.clock import Clock
    from consul_coord.config import Settings
    from consul_coord.errors import ConsulCoordError
    from consul_coord.events import Observer
    from consul_coord.http.agents import Agents
    from consul_coord.io import IO, Host
    from consul_coord.models import Stats

    P = ParamSpec("P")
    T = TypeVar("T")
    Program = Callable[Concatenate[IO, P], Coroutine[Any, Any, T]]


class BaseRunner:
    """The base of both runners, which carry out the calls of a client."""

    core: ClientState
    """The state that the client's recipes share; a new one in a forked child."""

    def __init__(
        self,
        settings: Settings,
        *,
        kind: str,
        session: SessionSpec | None,
        observer: Observer | None,
        clock: Clock | None,
        name: str | None = None,
        agents: Agents | None = None,
    ) -> None:
        check_spec(session)
        _validate.has_method("clock", clock, "now")
        _validate.has_method("observer", observer, "on_event")
        _validate.plain(**{"observer.on_event": getattr(observer, "on_event", None)})
        self._settings = settings
        self._agents = agents
        self._name = bytes_or_none(name, "client_name")
        self._kind = kind
        self._spec = session or SessionSpec()
        self._observer = observer
        self._clock: Clock = clock or SystemClock()
        self._closed_by: dict[None, object] = {}
        """Which call closes it, or has."""

    def _new_state(self, host: Host) -> ClientState:
        """Return the state of a client that has nothing yet."""
        state = ClientState(
            host,
            spec=self._spec,
            timeout=self._settings.timeout,
            datacenter=self._settings.datacenter,
            name=own_name(self._name),
        )
        if self._agents is not None:
            state.attach(self._agents)
        return state

    def now(self) -> float:
        """Return the lease clock's time in seconds."""
        return self._clock.now()

    def __reduce__(self) -> tuple[Any, ...]:
        message = (
            f"{self._kind} can't be pickled: make one in each process, and locks from it; that costs no I/O"
        )
        raise TypeError(message)

    def wall(self) -> float:
        """Return the time of day in seconds since 1970: the machine's, or that of a clock made for tests."""
        wall: Callable[[], float] = getattr(self._clock, "wall", time.time)
        return wall()

    def seconds_for(self, timeout: float | None) -> float:
        """Return the seconds that one call may take. Raises InvalidArgument for what is no time."""
        if timeout is None:
            return self._settings.timeout
        none = ", or None for the client's own"
        return _validate.span("timeout", timeout, positive=True, endless=False, none=none)

    def replace_token(self, token: str | None) -> None:
        """Send another token from now on. Raises ConfigError for what is no token."""
        self._settings.credentials.replace(token)

    @property
    def session_spec(self) -> SessionSpec:
        """The settings of the shared session that is made next."""
        return self._spec

    @session_spec.setter
    def session_spec(self, spec: SessionSpec) -> None:
        """Make the next shared session by these settings."""
        check_spec(spec, name="session_spec", none=False)
        self._spec = spec
        self.core.sessions.use(spec)

    def placed(self, options: WriteOptions | None) -> WriteOptions:
        """Return options that name the datacenter, for calls whose body has to say it."""
        given = WriteOptions() if options is None else options
        _validate.instance("options", given, WriteOptions)
        return replace(given, datacenter=given.datacenter or self._settings.datacenter)

    def __repr__(self) -> str:
        return f"<{self._kind} of {self._settings.label}>"


def own_name(given: bytes | None) -> bytes:
    """Return what a client's keys show by default: ``given`` or, for None, host and process as of now."""
    return f"{socket.gethostname()}:{os.getpid()}".encode() if given is None else given


OUTAGES = (TransportError, AcquireTimeout)
"""The errors of lost contact: their messages are enough."""


def brief(error: ConsulCoordError) -> ConsulCoordError:
    """Return an error without the frames that carried the request, and with what to do next."""
    error.args = (f"{error}{next_step(error)}",)
    bare(error)
    if isinstance(error, AcquireTimeout) and isinstance(error.__cause__, TransportError):
        error.__cause__.__cause__ = None  # its words are in both messages already
    return error


R = TypeVar("R", bound=BaseRunner)


class WrongWith:
    """The refusal of a ``with`` or ``async with`` that is the wrong kind for an object."""

    def __init__(self, message: str) -> None:
        self._message = message

    def __get__(self, instance: object, owner: type) -> Callable[..., NoReturn]:
        """Return a method that raises TypeError, and names the class."""

        def refuse(*_: object) -> NoReturn:
            raise TypeError(f"{owner.__name__} {self._message}")

        return refuse


class Entered:
    """The base of what is entered with ``with`` alone."""

    __slots__ = ()
    if not TYPE_CHECKING:  # a type checker is to find it by itself
        __aenter__ = __aexit__ = WrongWith(
            "is entered with 'with'; a coroutine uses AsyncClient, AsyncLock and so on"
        )


class AsyncEntered:
    """The base of what is entered with ``async with`` alone."""

    __slots__ = ()
    if not TYPE_CHECKING:
        __enter__ = __exit__ = WrongWith(
            "is entered with 'async with'; blocking code uses Client, Lock and so on"
        )


class Block:
    """The base of what ``hold`` returns: taken for a hold, it names the block that is missing."""

    __slots__ = ()
    _ways: ClassVar[str]
    """How code gets a hold."""
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            message = (
                f"hold() returns a block, which has no {name!r} and holds nothing before it is entered: "
                f"write {self._ways}"
            )
            raise AttributeError(message)


class BaseClient(Generic[R]):
    """The methods of a client that do no I/O."""

    def __init__(self, runner: R) -> None:
        self._runner = runner

    def now(self) -> float:
        """Return the lease clock's time in seconds: the one that deadlines are on."""
        return self._runner.now()

    def healthy(self, *, slack: float = 0.0) -> bool:
        """Return False when a live hold has less than ``slack`` seconds of its lease left.

        No I/O. For liveness probes: without holds it is True, also while Consul does not answer.
        """
        return self._runner.core.healthy(slack)

    @property
    def token(self) -> str:
        """The ACL token for all later requests: set it to replace it, to None or an empty text for none.

        It can't be read. Replaces a token file as well. Blocking queries that are under way end with the
        old one. Setting raises ConfigError for what is no token.
        """
        message = "a client's token is not shown: it can only be set"
        raise AttributeError(message)

    @token.setter
    def token(self, token: str | None) -> None:
        """Send this token from now on."""
        self._runner.replace_token(token)

    @property
    def session_spec(self) -> SessionSpec:
        """The settings of the shared session that this client makes next; may be set.

        A session that exists keeps its settings. The new ones count when it has ended, for locks and
        elections of the client's shared session; semaphores use them for the next session they make.
        """
        return self._runner.session_spec

    @session_spec.setter
    def session_spec(self, spec: SessionSpec) -> None:
        """Make the next shared session by these settings."""
        self._runner.session_spec = spec

    @property
    def connected(self) -> bool:
        """Whether Consul answers, as far as this client knows; no I/O.

        True from the first answer on, until an answer has been missing for 3 s; True again with the next one.
        An agent that answers, but reaches no server, is no contact. While you look at this, an idle client
        asks Consul every 10 s in the background, so that the value says something: the first look at a new
        client gives False.
        """
        return self._runner.core.connected

    @property
    def last_contact(self) -> float:
        """Seconds since Consul's last answer to this client; infinite before the first one. No I/O."""
        return self._runner.core.host.contact.age

    def ready(self) -> bool:
        """Return whether this client can do its work now; no I/O.

        True while it is ``connected``, the renewals of every hold succeed, and no started election has a
        ``problem``. For readiness probes: it says nothing of whether a hold is still valid, which
        ``healthy`` does.
        """
        return self._runner.core.ready()

    def stats(self) -> Stats:
        """Return the counters since the client was made."""
        return self._runner.core.stats()

    @property
    def pending_cleanup(self) -> int:
        """How many things may still have to be undone on the server.

        Waiting for it to answer, for late requests, or for the lock-delay of a hold that lasted too long.
        """
        return self._runner.core.pending_cleanup

    def __reduce__(self) -> tuple[Any, ...]:
        name = type(self).__name__
        message = f"{name} can't be pickled: make one in each process, and locks from it; that costs no I/O"
        raise TypeError(message)

    def __repr__(self) -> str:
        return repr(self._runner)


def require(client: object, kind: type[BaseClient[R]], user: str) -> R:
    """Return the runner of a client that is of the kind that ``user``, a public name, works with.

    The other kind's calls would do nothing, or not be undone: a block would run without its lock. Raises
    InvalidArgument.
    """
    if isinstance(client, kind):
        runner: R = vars(client)["_runner"]  # the one door to it, for this package's own use
        return runner
    message = f"{user} needs {_a(kind)}, not {_a(type(client))}"
    if isinstance(client, BaseClient):
        message += ": blocking code uses Client and Lock, a coroutine AsyncClient and AsyncLock, and so on"
    raise InvalidArgument(message)


def default_member(host: Host) -> str:
    """Return a name that no other member of a group has: host, process and a random part."""
    return f"{socket.gethostname()}:{os.getpid()}:{int(host.random() * 16**8):08x}"


def _a(kind: type) -> str:
    return f"{'an' if kind.__name__[0] in 'AEIOaeio' else 'a'} {kind.__name__}"
