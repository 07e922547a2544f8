"""What is cancelled stops, what is not cancelled is left alone, and what is to be cleaned up is."""

from __future__ import annotations

import asyncio
import gc
import itertools
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Final

import anyio
import pytest

from consul_coord import (
    LOCK_FLAGS,
    AcquireCancelled,
    AcquireTimeout,
    AsyncClient,
    AsyncLock,
    AsyncReadWriteLock,
    AsyncSemaphore,
    Group,
    LeaderElection,
    Lock,
    Partitioner,
    ReadWriteLock,
    ReleaseOutcome,
    observe,
)
from consul_coord.config import Settings
from consul_coord.errors import ConsulCoordError
from consul_coord.http.endpoints import kv
from consul_coord.http.transport.exchange import DirectTransport
from consul_coord.io import Signal
from consul_coord.recipes.cleanup.reaper import Reaper
from consul_coord.recipes.contend import queue
from consul_coord.recipes.rwlock.queue import base_of, marked
from consul_coord.testing.simulation.dice import Dice
from consul_coord.testing.simulation.program import SimTask
from consul_coord.testing.simulation.scheduler import Scheduler
from tests.promises.conftest import SPEC
from tests.promises.test_time import TAKES
from tests.promises.waiting import settled
from tests.support.fake_io import FakeIO
from tests.support.proxy import Fault, Lose
from tests.support.sites import eventually, never
from tests.support.stalls import lasting, stalls

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from consul_coord import Client, Watch
    from consul_coord.clock import SystemClock
    from consul_coord.http.transport.base import Cancellation
    from consul_coord.io import IO
    from consul_coord.server import ReferenceServer
    from consul_coord.testing.simulation.scheduler import Event
    from consul_coord.testing.simulation.threads import Threads
    from tests.promises.conftest import MakeClient
    from tests.support.proxy import FaultProxy
    from tests.support.sites import Operator

PATIENCE: Final = 10.0


# -- a cancellation hits what it is meant for


def test_cancelling_a_waiter_breaks_no_request_of_others_over_the_same_connection(
    proxy: FaultProxy, make_client: MakeClient, key: str
) -> None:
    held = Lock(make_client(), key).acquire(timeout=PATIENCE)
    client = make_client()
    lock = Lock(client, key)
    ended: list[BaseException | None] = []

    def wait() -> None:
        try:
            lock.acquire()
        except AcquireCancelled as error:
            ended.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    # It has sent what it had to send by now, and its connection is free for others.
    eventually(lambda: any("index=" in each.path for each in list(proxy.requests)))
    slow = proxy.add(Fault(lose=Lose.TIME, method="PUT", path=f"/v1/kv/{key}/other"))
    written: list[object] = []

    def write() -> None:
        try:
            # Bound to an index: it can't be sent again by the client if its connection breaks.
            written.append(client.kv.put(f"{key}/other", b"x", cas=0))
        except Exception as error:  # noqa: BLE001 - looked at below
            written.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    assert slow.hit.wait(PATIENCE)
    lock.cancel()
    waiter.join(PATIENCE)
    assert ended, "the waiter was not cancelled"
    slow.let_go()
    writer.join(PATIENCE)
    assert written == [True]
    assert held.is_held


def test_many_cancellations_break_no_request_of_others(make_client: MakeClient, key: str) -> None:
    held = Lock(make_client(), key).acquire(timeout=PATIENCE)
    client = make_client()
    failed: list[BaseException] = []
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            name = f"{key}/{threading.get_ident()}/{number}"
            try:
                assert client.kv.put(name, b"x", cas=0)
            except Exception as error:  # noqa: BLE001 - looked at below
                failed.append(error)

    writers = [threading.Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    for number in range(60):
        lock = Lock(client, key)

        def wait(lock: Lock = lock) -> None:
            with pytest.raises(AcquireCancelled):
                lock.acquire()

        waiter = threading.Thread(target=wait)
        waiter.start()
        while waiter.is_alive():
            lock.cancel()
            waiter.join(0.0002 * number)
    stop.set()
    for writer in writers:
        writer.join(PATIENCE)
    assert failed == []
    assert held.is_held


def test_a_cancellation_at_the_very_end_of_a_request_does_not_hit_the_next_one(
    proxy: FaultProxy, key: str
) -> None:
    transport = DirectTransport(Settings.resolve(address=proxy.address, environ={}))
    slow = proxy.add(Fault(lose=Lose.TIME, method="PUT", path=f"/v1/kv/{key}/second"))
    second: list[int] = []

    def write(name: str, cancel: Cancellation | None = None) -> int:
        request = kv.put(f"{key}/{name}", b"x", cas=0).request
        return transport.send(request, timeout=PATIENCE, cancel=cancel).status

    def write_second() -> None:
        with suppress(ConsulCoordError):
            second.append(write("second"))

    class AtTheEnd(Signal):
        """Is set when others have the first request's connection, and it is still listened to."""

        def subscribe(self, callback: Callable[[], object]) -> Callable[[], None]:
            def unsubscribe() -> None:
                writer.start()
                assert slow.hit.wait(PATIENCE)
                callback()

            return unsubscribe

    writer = threading.Thread(target=write_second)
    assert write("first", AtTheEnd()) == 200
    slow.let_go()
    writer.join(PATIENCE)
    assert second == [200]
    transport.close()


@pytest.mark.anyio
async def test_cancelled_tasks_break_no_request_of_others(
    server: ReferenceServer[SystemClock], key: str
) -> None:
    async with AsyncClient(address=server.address, session=SPEC) as client:
        await client.kv.put(f"{key}/warm", b"x")
        for number in range(40):
            async with anyio.create_task_group() as group:
                group.start_soon(client.kv.put, f"{key}/doomed", b"x")
                with anyio.move_on_after(0.0002 * number):
                    await anyio.sleep_forever()
                group.cancel_scope.cancel()
            assert await client.kv.put(f"{key}/{number}", b"x", cas=0)
        async with AsyncLock(client, key) as hold:
            assert hold.is_held


ASYNC: dict[str, Callable[[AsyncClient, str], Any]] = {
    "lock": AsyncLock,
    "read": lambda client, key: AsyncReadWriteLock(client, key, session=SPEC).read,
    "write": lambda client, key: AsyncReadWriteLock(client, key, session=SPEC).write,
    "permit": lambda client, key: AsyncSemaphore(client, key, 1),
}


@pytest.mark.parametrize("kind", ASYNC)
def test_a_task_that_was_cancelled_in_its_clean_up_too_leaves_the_rest_to_the_client(
    proxy: FaultProxy, make_client: MakeClient, operator: Operator, key: str, kind: str
) -> None:
    """Also while somebody has the task: its error refers to all that the call had."""

    async def main() -> None:
        held = TAKES["write" if kind == "read" else kind](make_client(), key)
        before = len(operator.under(key))
        async with AsyncClient(address=proxy.address, session=SPEC) as client:
            wanted = ASYNC[kind](client, key)
            task = asyncio.create_task(wanted.acquire())
            await asyncio.to_thread(eventually, lambda: len(operator.under(key)) > before)
            withdrawing = proxy.add(Fault(lose=Lose.TIME))
            task.cancel()
            await asyncio.to_thread(withdrawing.hit.wait, PATIENCE)
            task.cancel()
            await asyncio.wait([task])
            proxy.clear()
            held.release()
            async with wanted.hold(timeout=PATIENCE) as hold:
                assert hold.is_held
        assert task.cancelled()

    asyncio.run(main())


# -- a cancellation before the start


def test_a_program_that_is_cancelled_before_its_start_sends_nothing(
    proxy: FaultProxy, client: Client
) -> None:
    host, done = client._runner.core.host, list[Signal]()

    async def ask(io: IO) -> None:
        await io.changed(kv.get("never").request)

    async def begin(io: IO) -> None:
        task = io.spawn(ask, name="late")
        task.cancel()
        done.append(task.done)

    host.spawn(begin, name="early")
    eventually(lambda: done and done[0].is_set())
    assert [each.path for each in proxy.requests] == []


def test_a_program_that_is_cancelled_before_its_start_does_nothing_in_a_simulation() -> None:
    ran: list[object] = []

    class Runner:
        crashed = False
        running: SimTask | None = None
        threads: Threads | None = None

        def __init__(self) -> None:
            self.scheduler = Scheduler(Dice(0, "order"))

        def soon(self, action: Callable[[], object], *, thread: object = None) -> Event:
            assert thread is task
            return self.scheduler.after(0.0, action)

    runner = Runner()
    task = SimTask(runner, "late", on_failure=lambda *_: None)

    async def run() -> None:
        await task.suspend()
        ran.append("ran")

    task.start(run())
    task.cancel()
    while runner.scheduler.step(1.0):
        pass
    assert task.done.is_set()
    assert ran == []


@pytest.mark.slow
@pytest.mark.parametrize("pause", [0.0, 0.0005, 0.002])
def test_calls_that_end_as_they_begin_leave_no_query_with_the_agent(
    server: ReferenceServer[SystemClock], make_client: MakeClient, key: str, pause: float
) -> None:
    straight = {"address": server.address}
    held = Lock(make_client(**straight), key).acquire(timeout=PATIENCE)
    client = make_client(**straight)
    quiet = settled(lambda: server.state.blocked)
    for number in range(30):
        with pytest.raises(AcquireTimeout):
            Lock(client, key).acquire(timeout=0.001 + pause * number)
    eventually(lambda: server.state.blocked <= quiet, within=4.0)
    assert held.is_held


# -- clean-up that comes while the reaper thinks


class Interrupting(FakeIO):
    """An ``IO`` in which another thread does something amid the n-th look at the clock."""

    def __init__(self, act: Callable[[], object], *, at: int) -> None:
        super().__init__()
        self._act = act
        self._left = at

    def now(self) -> float:
        self._left -= 1
        if self._left == 0:
            self._act()
        return super().now()


class Task:
    """Something to clean up, which notes when it was done."""

    def __init__(self) -> None:
        self.done_at: list[float] = []

    async def step(self, io: IO, *, deadline: float) -> float | None:
        self.done_at.append(io.now())
        return None


@pytest.mark.parametrize("moment", range(1, 7))
def test_what_comes_while_the_reaper_looks_at_the_clock_is_done_at_once(moment: int) -> None:
    urgent, later = Task(), Task()
    added_at: list[float] = []

    def add() -> None:
        if not added_at:
            added_at.append(io.time)
            reaper.add(urgent)

    io = Interrupting(add, at=moment)
    reaper = Reaper(io, timeout=10.0, closing=Signal())
    reaper.add(later, after=50.0)
    io.run_spawned("reaper")
    if added_at:
        assert urgent.done_at == added_at, "it was done with the next thing that was due"
    assert later.done_at == [1050.0]


# -- closing in time


@pytest.mark.parametrize("pending", ["a hold", "holds of all kinds", "clean-up"])
def test_closing_takes_no_longer_than_its_time_when_nothing_answers(
    proxy: FaultProxy, make_client: MakeClient, key: str, pending: str
) -> None:
    client = make_client()
    kinds = TAKES if pending == "holds of all kinds" else ["lock"]
    holds = [TAKES[kind](client, f"{key}/{kind}") for kind in kinds]
    proxy.add(Fault(lose=Lose.TIME, method="PUT", times=1_000))
    if pending == "clean-up":
        holds.clear()  # forgotten: the reaper is to give it back
        gc.collect()
        eventually(lambda: proxy.count("PUT", "/v1/txn") >= 2)
    with stalls() as measured:
        began = time.monotonic()
        client.close(timeout=0.6)
        took = time.monotonic() - began
    assert took < 0.6 + 0.3 + measured.slack


def test_leaving_a_group_takes_no_longer_than_its_time(
    proxy: FaultProxy, client: Client, operator: Operator, key: str
) -> None:
    group = Group(client, key)
    group.join(timeout=PATIENCE)
    proxy.add(Fault(lose=Lose.TIME, times=1_000))
    with stalls() as measured:
        began = time.monotonic()
        assert group.leave(timeout=0.6) is ReleaseOutcome.UNKNOWN
        took = time.monotonic() - began
    assert 0.6 <= took < 0.6 + 0.3 + measured.slack
    proxy.clear()
    eventually(lambda: not operator.under(f"{key}/members/"))


FOLLOWED: dict[str, Callable[[Client, str, str], Watch[Any]]] = {
    "key": lambda client, key, _: client.kv.watch(key),
    "keys": lambda client, key, _: client.kv.watch_tree(key),
    "session": lambda client, _, session: client.session.watch(session),
    "leader": lambda client, key, _: observe(client, key),
    "members": lambda client, key, _: Group(client, key).watch(),
}


@pytest.mark.parametrize("when", ["at first", "after a change"])
@pytest.mark.parametrize("kind", FOLLOWED)
def test_the_end_of_a_watch_waits_for_no_answer(
    server: ReferenceServer[SystemClock],
    proxy: FaultProxy,
    make_client: MakeClient,
    operator: Operator,
    key: str,
    *,
    kind: str,
    when: str,
) -> None:
    other = make_client(address=server.address)
    hold, group = Lock(other, key).acquire(timeout=PATIENCE), Group(other, key, id="other")
    group.join(timeout=PATIENCE)
    watch, silence = FOLLOWED[kind](make_client(), key, hold.session), Fault(lose=Lose.TIME, times=1_000)
    if when == "at first":
        proxy.add(silence)
    with ThreadPoolExecutor(1) as threads:
        end = threads.submit(list, watch)
        if when == "after a change":
            eventually(lambda: any("index=" in each.path for each in list(proxy.requests)))
            proxy.add(silence)
            hold.put("another value")
            group.update("another value")
            if kind == "session":
                operator.destroy(hold.session)
        try:
            assert silence.hit.wait(PATIENCE)
            with lasting(most=0.3):
                watch.close()
                end.result(PATIENCE)
        finally:
            watch.close()
            proxy.clear()


@pytest.mark.parametrize("kind", ["election", "partitioner"])
def test_stopping_takes_no_longer_than_its_time(
    proxy: FaultProxy, client: Client, operator: Operator, key: str, kind: str
) -> None:
    group = Group(client, f"{key}/group", id="one")
    things: dict[str, LeaderElection | Partitioner] = {
        "election": LeaderElection(client, key),
        "partitioner": Partitioner(group, 2, settle=0.0),
    }
    thing = things[kind]
    thing.start()
    if kind == "partitioner":
        group.join(timeout=PATIENCE)
    eventually(lambda: thing.is_leader if isinstance(thing, LeaderElection) else len(thing.owned) == 2)
    held = f"{key}/group/partitions/0" if kind == "partitioner" else key
    assert operator.holder(held)
    proxy.add(Fault(lose=Lose.TIME, times=1_000))
    with stalls() as measured:
        began = time.monotonic()
        thing.stop(timeout=0.6)
        took = time.monotonic() - began
    assert took < 0.6 + 0.3 + measured.slack
    proxy.clear()
    eventually(lambda: operator.holder(held) is None)


def begun_twice(begin: Any, options: dict[str, float], *, at_line: int) -> bool:
    """Call a method in this thread, and in another one when this has come to a line of the method.

    Returns whether it has so many lines.
    """
    lines, other = itertools.count(1), threading.Thread(target=begin, kwargs=options)

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code is not begin.__func__.__code__:
            return None
        if event == "line" and next(lines) == at_line:
            other.start()
            other.join(0.05)  # it may have to wait for this one
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        begin(**options)
    finally:
        sys.settrace(before)
    if other.ident is not None:
        other.join(PATIENCE)
    return other.ident is not None


@pytest.mark.parametrize("kind", ["group", "election", "partitioner"])
def test_what_two_threads_begin_at_once_is_over_when_it_is_ended_once(
    client: Client, operator: Operator, key: str, kind: str
) -> None:
    own = "partitions" if kind == "partitioner" else ""

    def held() -> list[str]:
        return [each for each in operator.under(f"{key}/") if own in each and operator.holder(each)]

    with ExitStack() as joined:
        line = 0
        for line in itertools.count(1):
            group, election = (
                Group(client, f"{key}/{line}", id="one"),
                LeaderElection(client, f"{key}/{line}"),
            )
            partitioner = Partitioner(group, 2, settle=0.0)
            if kind == "partitioner":
                joined.enter_context(group)
            begin, end, options = {
                "group": (group.join, group.leave, {"timeout": PATIENCE}),
                "election": (election.start, election.stop, {}),
                "partitioner": (partitioner.start, partitioner.stop, {}),
            }[kind]
            goes_on = begun_twice(begin, options, at_line=line)
            end()
            if not goes_on:
                break
        assert line > 5
        eventually(lambda: not held())
        never(held, within=0.5)


def test_leaving_a_group_waits_until_a_member_that_joins_again_has_given_up(
    proxy: FaultProxy, client: Client, operator: Operator, key: str
) -> None:
    group = Group(client, key, id="one")
    group.join(timeout=PATIENCE)
    (member,) = operator.under(f"{key}/members/")
    joining = proxy.add(Fault(lose=Lose.TIME, method="PUT", path="/v1/txn", containing=b'"lock"'))
    operator.delete(member)
    assert joining.hit.wait(PATIENCE)
    before = len(proxy.requests)
    assert group.leave(timeout=PATIENCE) is ReleaseOutcome.ALREADY_LOST
    assert [each for each in proxy.requests[before:] if member in each.path], "it has not given up yet"


DEAD: dict[str, Callable[[str, str], tuple[str, bytes]]] = {
    "lock": lambda key, session: (queue.contender_key(key, session), b""),
    "read": lambda key, session: (queue.contender_key(base_of(key), session), marked("write", b"")),
    "write": lambda key, session: (queue.contender_key(base_of(key), session), marked("write", b"")),
}
"""By kind, the key and the value of a call that waits."""


@pytest.mark.parametrize("written", [1, 2])
@pytest.mark.parametrize("kind", DEAD)
def test_what_a_dead_waiter_has_left_is_removed_however_often_it_was_written(
    make_client: MakeClient, operator: Operator, key: str, kind: str, written: int
) -> None:
    held = TAKES["write" if kind == "read" else kind](make_client(), key)
    session = operator.create(lock_delay="0s")
    left, value = DEAD[kind](key, session)
    for number in range(written):
        operator.put(left, value + b"." * number, acquire=session, flags=LOCK_FLAGS)
    operator.destroy(session)
    assert operator.entry(left) is not None
    wanted = ReadWriteLock(make_client(), key, session=SPEC)
    waiting = {"lock": Lock(make_client(), key), "read": wanted.read, "write": wanted.write}[kind]
    with pytest.raises(AcquireTimeout):
        waiting.acquire(timeout=0.5)
    eventually(lambda: operator.entry(left) is None)
    assert held.is_held
