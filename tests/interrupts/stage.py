"""One client that is interrupted, a rival that must get what it had, and what may be left of it: nothing.

Rules
- After an interrupted call its caller drops what it has, or does with it what the case says. Within
  ``PATIENCE`` seconds a rival has every key then, and the interrupted client believes in no hold of it.
- A session lives longer here than any test, so that no key becomes free by a session's end.
- Runs that share a client are judged together, so that the waiting is done once.
"""

from __future__ import annotations

import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from consul_coord import (
    AcquireTimeout,
    Client,
    Lock,
    MultiLock,
    ReadWriteLock,
    ReentrantLock,
    Semaphore,
    SessionSpec,
)
from consul_coord.recipes.hold.grant import Grant
from consul_coord.recipes.hold.view import grant_of
from consul_coord.recipes.lock.keys import Keys
from consul_coord.recipes.session.pool import PooledSession
from tests.interrupts.points import Struck, raises, strike

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from consul_coord import Hold
    from consul_coord.recipes.client import ClientState
    from tests.support.sites import Site

PATIENCE = 5.0
"""Seconds after which a rival must have what an interrupted call had."""
BATCH = 40
SPEC = SessionSpec(ttl=60.0, lock_delay=0.0, allow_unbounded=True)
HARMLESS = ("RuntimeWarning in <coroutine", "ResourceWarning in <socket")
"""What Python remarks on when a coroutine that was not begun, or a socket, is closed as it is dropped."""

MAKE: dict[str, Callable[[Client, str], Any]] = {
    "lock": Lock,
    "fair lock": lambda client, key: Lock(client, key, fair=True),
    "own session": lambda client, key: Lock(client, key, session=SPEC),
    "reentrant": ReentrantLock,
    "multi": lambda client, key: MultiLock(client, [key, f"{key}.2"]),
    "read": lambda client, key: ReadWriteLock(client, key).read,
    "write": lambda client, key: ReadWriteLock(client, key).write,
    "semaphore": lambda client, key: Semaphore(client, key, 1),
}
KINDS = tuple(MAKE)
EXCLUDED_BY = {"read": "write", "fair lock": "lock", "own session": "lock"}
"""The kind that can't be taken beside another one, where that is not itself."""


@dataclass(eq=False)
class Scene:
    """What one run is about: an object, and perhaps its hold."""

    kind: str
    client: Client
    key: str
    rival: Client
    lock: Any = None
    hold: Hold | None = None
    done: bool = False
    """Whether the call came to its end."""
    kept: list[object] = field(default_factory=list)
    """What the application keeps though the call was interrupted."""
    beside: threading.Thread | None = None
    """What goes on meanwhile, and ends soon."""
    over: bool = False
    """Whether the call is over, however it ended."""

    def __post_init__(self) -> None:
        self.lock = MAKE[self.kind](self.client, self.key)

    def had(self) -> Hold:
        """Return the hold that was there before."""
        assert self.hold is not None
        return self.hold

    def excluding(self) -> Any:
        """Return the rival's object that can't be held at the same time."""
        return MAKE[EXCLUDED_BY.get(self.kind, self.kind)](self.rival, self.key)


def nothing(scene: Scene) -> None:
    """Drop everything."""


@dataclass(frozen=True)
class Case:
    """One call that is interrupted."""

    name: str
    kinds: tuple[str, ...]
    act: Callable[[Scene], None]
    prepare: Callable[[Scene], None] = nothing
    after: Callable[[Scene], None] = nothing
    """What the application does after the strike."""
    fresh: bool = False
    """Whether each run has a client of its own, which has done nothing yet."""
    slow: bool = False
    """Whether some places of it take seconds to try."""


@dataclass
class Findings:
    """Promises that were not kept, and how far a case went."""

    told: list[str] = field(default_factory=list)
    places: int = 0

    def add(self, what: str, at: str = "") -> None:
        """Take note of one."""
        self.told.append(f"[{self.places}] {what}{': ' if at else ''}{at}")


def interrupt(
    site: Site, case: Case, kind: str, places: Iterable[int], exception: type[BaseException] = Struck
) -> Findings:
    """Run a case once for each place, until there are no more; return what was found."""
    findings, clients = Findings(), list[Client]()
    threads, sockets = resources()
    rival = Client(address=site.address, session=SPEC)
    remaining = iter(places)
    with quiet() as dropped:
        while batch := _batch(site, case, kind, remaining, exception, rival, findings):
            for run in batch:
                _judge(run, findings)
            for client in {id(scene.client): scene.client for scene, *_ in batch}.values():
                for left in left_in(client):
                    findings.add(f"left in the client: {left}")
                client.close()
                clients.append(client)
            if not batch[-1][2]:
                break
        rival.close()
    batch = []
    threads_now, sockets_now = resources()
    if threads_now - threads:
        findings.add(f"threads left: {threads_now - threads}")
    if sockets_now > sockets:
        findings.add(f"{sockets_now - sockets} sockets left")
    for each in dropped:
        if not each.startswith(HARMLESS):
            findings.add(f"dropped by the interpreter: {each}")
    return findings


_Run = tuple[Scene, list[Grant], str, float]
"""A scene, the holds that were there, where it was struck, and when."""


def _batch(  # noqa: PLR0917 - one step of the one above
    site: Site,
    case: Case,
    kind: str,
    places: Iterator[int],
    exception: type[BaseException],
    rival: Client,
    findings: Findings,
) -> list[_Run]:
    """Interrupt the case at the next places, with one client unless each is to have its own."""
    runs: list[_Run] = []
    client: Client | None = None
    for place in places:
        if client is None or case.fresh:
            client = Client(address=site.address, session=SPEC)
            if not case.fresh:
                MAKE[kind](client, f"{site.unique}/warm").acquire(timeout=10).release()
        scene = Scene(kind, client, f"{site.unique}/{place:05}", rival)
        case.prepare(scene)
        struck = strike(lambda scene=scene: case.act(scene), place, handler=partial(raises, exception))  # type: ignore[misc]
        scene.over = True
        if scene.beside is not None:
            scene.beside.join()
        findings.places = place if struck.at else struck.places
        if struck.at and not struck.raised and not scene.done:
            findings.add("the exception was lost, and the call, too", struck.at)
        grants = [] if scene.hold is None else [grant_of(scene.hold)]
        try:
            case.after(scene)
        except Exception as error:  # noqa: BLE001 - a finding, whatever it is
            findings.add(f"afterwards {error!r}", struck.at)
        scene.hold = scene.lock = None
        runs.append((scene, grants, struck.at, time.monotonic()))
        if not struck.at or len(runs) == BATCH:
            break
    return runs


def _judge(run: _Run, findings: Findings) -> None:
    """See that a rival gets the key in time, and that the interrupted client does not believe in it then."""
    scene, grants, at, since = run
    # The waiting of one run of a batch is not charged to the next.
    timeout = max(1.0, since + PATIENCE - time.monotonic())
    core, now = scene.client._runner.core, scene.client.now
    try:
        with scene.excluding().hold(timeout=timeout):
            for grant in [*grants, *core.register.all(Grant)]:
                if grant.key.startswith(scene.key) and grant.is_held(now()):
                    findings.add(f"believes in {grant.key}", at)
    except AcquireTimeout as error:
        findings.add(f"not free: {error}", at)


def left_in(client: Client) -> list[str]:
    """Return what a client still has of calls that have ended, a while after the last of them."""
    deadline = time.monotonic() + PATIENCE
    while (found := claimed(client._runner.core)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def claimed(core: ClientState) -> list[str]:
    """Return what a client has of calls at this moment."""
    claims = [*core.register.all(Grant), *core.register.all(Keys), *core.register.all(PooledSession)]
    counted = {
        "claims": len(claims),
        "tickets": len(core.tickets),
        "calls": len(core.calls),
        "waits": len(core.watches.waits),
        "queries": len(core.watches._queries),
    }
    return [f"{number} {what}" for what, number in counted.items() if number]


def resources() -> tuple[set[str], int]:
    """Return the threads and the number of the sockets of this process."""
    count = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            count += str(descriptor.readlink()).startswith("socket:")
    return {f"{thread.name} {thread.ident}" for thread in threading.enumerate()}, count


def _finalized(hook: sys.UnraisableHookArgs) -> str:
    """Return the object whose finalizer raised. Since Python 3.14 only the message names it."""
    named = "".join((hook.err_msg or "").partition("<")[1:])
    return named if hook.object is None else repr(hook.object)


@contextmanager
def quiet() -> Iterator[list[str]]:
    """Note the exceptions that finalizers raise, which the interpreter only reports."""
    dropped: list[str] = []
    before = sys.unraisablehook
    sys.unraisablehook = lambda hook: dropped.append(f"{hook.exc_type.__name__} in {_finalized(hook)}")
    try:
        yield dropped
    finally:
        sys.unraisablehook = before
