"""The stage of ``stage.py`` for an event loop: what is cancelled, and what may be left of it: nothing.

Rules
- Everything of one case runs in one loop: the client, and the rival that must get what the client had, or
  stood in its way before.
- After each batch no task is left but those that were there before.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
from anyio.lowlevel import checkpoint

from consul_coord import (
    AcquireTimeout,
    AsyncClient,
    AsyncLock,
    AsyncMultiLock,
    AsyncReadWriteLock,
    AsyncReentrantLock,
    AsyncSemaphore,
)
from consul_coord.recipes.hold.grant import Grant
from consul_coord.recipes.hold.view import grant_of
from tests.interrupts.awaits import strike
from tests.interrupts.stage import EXCLUDED_BY, PATIENCE, SPEC, Findings, claimed, quiet, resources

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator

    from consul_coord import AsyncHold
    from tests.interrupts.awaits import Strike
    from tests.support.sites import Site

BATCH = 20

MAKE: dict[str, Callable[[AsyncClient, str], Any]] = {
    "lock": AsyncLock,
    "fair lock": lambda client, key: AsyncLock(client, key, fair=True),
    "own session": lambda client, key: AsyncLock(client, key, session=SPEC),
    "reentrant": AsyncReentrantLock,
    "multi": lambda client, key: AsyncMultiLock(client, [key, f"{key}.2"]),
    "read": lambda client, key: AsyncReadWriteLock(client, key).read,
    "write": lambda client, key: AsyncReadWriteLock(client, key).write,
    "semaphore": lambda client, key: AsyncSemaphore(client, key, 1),
}
KINDS = tuple(MAKE)


@dataclass(eq=False)
class Scene:
    """What one run is about: an object, and perhaps its hold."""

    kind: str
    client: AsyncClient
    key: str
    rival: AsyncClient
    lock: Any = None
    hold: AsyncHold | None = None
    done: bool = False
    """Whether the call came to its end."""
    kept: list[object] = field(default_factory=list)
    """What the application keeps though the call was cancelled."""
    beside: Callable[[], Coroutine[Any, Any, None]] | None = None
    """What goes on meanwhile, and ends soon."""
    over: bool = False
    """Whether the call is over, however it ended."""

    def __post_init__(self) -> None:
        self.lock = MAKE[self.kind](self.client, self.key)

    def had(self) -> AsyncHold:
        """Return the hold that was there before."""
        assert self.hold is not None
        return self.hold

    def excluding(self) -> Any:
        """Return the rival's object that can't be held at the same time."""
        return MAKE[EXCLUDED_BY.get(self.kind, self.kind)](self.rival, self.key)


async def nothing(scene: Scene) -> None:
    """Drop everything."""


@dataclass(frozen=True)
class Case:
    """One call that is cancelled."""

    name: str
    kinds: tuple[str, ...]
    act: Callable[[Scene], Coroutine[Any, Any, None]]
    prepare: Callable[[Scene], Awaitable[None]] = nothing
    after: Callable[[Scene], Awaitable[None]] = nothing
    """What the application does after the cancellation."""
    fresh: bool = False
    """Whether each run has a client of its own, which has done nothing yet."""


async def interrupt(site: Site, case: Case, kind: str, way: str, places: Iterable[int]) -> Findings:
    """Run a case once for each place, until there are no more; return what was found."""
    findings = Findings()
    await checkpoint()
    threads, sockets = resources()
    tasks = len(anyio.get_running_tasks())
    async with AsyncClient(address=site.address, session=SPEC) as rival:
        remaining = iter(places)
        with quiet() as dropped:
            while batch := await _batch(site, case, kind, way, remaining, rival, findings):
                for run in batch:
                    await _judge(run, findings)
                for client in {id(run.scene.client): run.scene.client for run in batch}.values():
                    for left in await _left_in(client):
                        findings.add(f"left in the client: {left}")
                    await client.close()
                if not batch[-1].struck.at:
                    break
    batch = []
    await gone(lambda: len(anyio.get_running_tasks()) > tasks)
    if (now := len(anyio.get_running_tasks())) > tasks:
        findings.add(f"{now - tasks} tasks left: {[task.name for task in anyio.get_running_tasks()]}")
    threads_now, sockets_now = resources()
    # asyncio and trio look up names in threads of their own, which stay.
    if added := [name for name in threads_now - threads if "consul" in name]:
        findings.add(f"threads left: {added}")
    if sockets_now > sockets:
        findings.add(f"{sockets_now - sockets} sockets left")
    for warning in dropped:
        findings.add(f"dropped by the interpreter: {warning}")
    return findings


@dataclass(frozen=True)
class _Run:
    scene: Scene
    grants: list[Grant]
    """The holds that were there."""
    struck: Strike
    since: float


async def _batch(  # noqa: PLR0917 - one step of the one above
    site: Site,
    case: Case,
    kind: str,
    way: str,
    places: Iterator[int],
    rival: AsyncClient,
    findings: Findings,
) -> list[_Run]:
    """Cancel the case at the next places, with one client unless each is to have its own."""
    runs: list[_Run] = []
    client: AsyncClient | None = None
    for place in places:
        if client is None or case.fresh:
            client = AsyncClient(address=site.address, session=SPEC)
            await client.__aenter__()
            if not case.fresh:
                await (await MAKE[kind](client, f"{site.unique}/warm").acquire(timeout=10)).release()
        scene = Scene(kind, client, f"{site.unique}/{way}/{place:05}", rival)
        await case.prepare(scene)
        struck = await _struck(case, scene, place, way)
        findings.places = place if struck.at else struck.places
        if struck.at and not struck.raised and not scene.done:
            findings.add("the cancellation was lost, and the call, too", struck.at)
        grants = [] if scene.hold is None else [grant_of(scene.hold)]
        try:
            await case.after(scene)
        except Exception as error:  # noqa: BLE001 - a finding, whatever it is
            findings.add(f"afterwards {error!r}", struck.at)
        scene.hold = scene.lock = None
        runs.append(_Run(scene, grants, struck, time.monotonic()))
        if not struck.at or len(runs) == BATCH:
            break
    return runs


async def _struck(case: Case, scene: Scene, place: int, way: str) -> Strike:
    results: list[Strike] = []
    async with anyio.create_task_group() as group:
        if scene.beside is not None:
            group.start_soon(scene.beside)
        # In a task of its own, so that what it leaves in the task is gone with that.

        async def struck() -> None:
            results.append(await strike(lambda: case.act(scene), place, way))
            scene.over = True

        group.start_soon(struck)
    scene.beside = None
    return results[0]


async def _judge(run: _Run, findings: Findings) -> None:
    """See that a rival gets the key in time, and that the cancelled client does not believe in it then."""
    scene = run.scene
    # The waiting of one run of a batch is not charged to the next.
    timeout = max(1.0, run.since + PATIENCE - time.monotonic())
    core, now = scene.client._runner.core, scene.client.now
    try:
        async with scene.excluding().hold(timeout=timeout):
            for grant in [*run.grants, *core.register.all(Grant)]:
                if grant.key.startswith(scene.key) and grant.is_held(now()):
                    findings.add(f"believes in {grant.key}", run.struck.at)
    except AcquireTimeout as error:
        findings.add(f"not free: {error}", run.struck.at)


async def _left_in(client: AsyncClient) -> list[str]:
    core = client._runner.core
    await gone(lambda: claimed(core))
    return claimed(core)


async def gone(left: Callable[[], object]) -> None:
    """Wait until something is gone, but not for long."""
    deadline = time.monotonic() + PATIENCE
    while left() and time.monotonic() < deadline:  # noqa: ASYNC110 - it gives no notice
        await anyio.sleep(0.002)
