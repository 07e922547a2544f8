"""How a ``with`` block ends: released first, then the errors, in their order."""

from __future__ import annotations

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from consul_coord import (
    Client,
    Lock,
    LockLost,
    LossReason,
    MultiLock,
    ReadWriteLock,
    ReentrantLock,
    ReleaseOutcome,
    Semaphore,
)
from consul_coord.recipes.contend import attempt
from consul_coord.recipes.hold.holds import Holds
from tests.lock import programs
from tests.support.sites import eventually
from tests.support.stalls import stalls

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from contextlib import AbstractContextManager

    from consul_coord import Hold
    from consul_coord.http.messages import Request, Response
    from consul_coord.recipes.hold.grant import Handle
    from tests.lock.conftest import MakeClient
    from tests.support.proxy import FaultProxy
from tests.support.sites import Site

T = TypeVar("T")
FORMS = ["with lock", "with lock.hold()"]


def entered(lock: Lock, form: str) -> AbstractContextManager[Hold]:
    return lock if form == "with lock" else lock.hold(timeout=5)


def lose(site: Site, hold: Hold) -> None:
    site.operator.destroy(hold.session)
    assert hold.lost.wait(5)


@pytest.mark.parametrize("form", FORMS)
def test_a_body_that_ends_well_releases(site: Site, client: Client, form: str) -> None:
    lock = Lock(client, site.key)
    for _ in range(3):
        with entered(lock, form) as hold:
            assert site.operator.holder(site.key) == hold.session
        assert site.operator.holder(site.key) is None
        assert hold.release() is ReleaseOutcome.RELEASED


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("error", [ValueError(), KeyboardInterrupt(), SystemExit(3), GeneratorExit()])
def test_what_the_body_raises_goes_on_and_the_lock_is_released(
    site: Site, client: Client, form: str, error: BaseException
) -> None:
    with pytest.raises(type(error)) as told, entered(Lock(client, site.key), form):
        raise error
    assert told.value is error
    assert site.operator.holder(site.key) is None


@pytest.mark.parametrize("form", FORMS)
def test_a_loss_is_told_at_the_end_of_a_body_that_ended_well(site: Site, client: Client, form: str) -> None:
    with pytest.raises(LockLost) as told, entered(Lock(client, site.key), form) as hold:
        lose(site, hold)
    assert told.value.reason is LossReason.SESSION_GONE
    assert told.value.__cause__ is None


@pytest.mark.parametrize("form", FORMS)
def test_a_loss_has_the_bodys_exception_as_its_cause(site: Site, client: Client, form: str) -> None:
    error = ValueError("from the body")
    with (  # noqa: PT012 - the block is what is tested
        pytest.raises(LockLost) as told,
        entered(Lock(client, site.key), form) as hold,
    ):
        lose(site, hold)
        raise error
    assert told.value.__cause__ is error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_an_exit_is_not_replaced_by_a_loss(site: Site, client: Client, error: BaseException) -> None:
    with pytest.raises(type(error)) as told, Lock(client, site.key) as hold:  # noqa: PT012 - the block
        lose(site, hold)
        raise error
    assert told.value is error


def test_the_news_of_the_loss_itself_goes_on_unchanged(site: Site, client: Client) -> None:
    raised: list[LockLost] = []
    with pytest.raises(LockLost) as told, Lock(client, site.key) as hold:  # noqa: PT012 - the block
        lose(site, hold)
        try:
            hold.check()
        except LockLost as error:
            raised.append(error)
            raise
    assert raised == [told.value]


def test_a_loss_that_only_the_release_finds_is_told(site: Site, make_client: MakeClient) -> None:
    with pytest.raises(LockLost) as told, Lock(make_client(), site.key):
        site.operator.delete(site.key)
    assert told.value.reason is LossReason.KEY_DELETED


@pytest.mark.slow
def test_an_unknown_outcome_is_not_raised(
    site: Site, proxy: FaultProxy, make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consul_coord.recipes.hold.holds.BUDGET", 0.2)
    client = make_client(address=proxy.address)
    with Lock(client, site.key):
        proxy.go_down()
    proxy.come_up()
    assert eventually(lambda: client.pending_cleanup == 0)
    assert site.operator.holder(site.key) is None


def test_a_hold_released_in_the_body_is_no_trouble_at_its_end(site: Site, client: Client) -> None:
    with Lock(client, site.key) as hold:
        assert hold.release() is ReleaseOutcome.RELEASED


def test_closing_the_client_in_the_body_is_a_loss(site: Site, client: Client) -> None:
    with pytest.raises(LockLost) as told, Lock(client, site.key):
        client.close()
    assert told.value.reason is LossReason.CLIENT_CLOSED
    assert site.left_behind() == []


# -- Ctrl-C


def test_ctrl_c_in_the_body(site: Site, client: Client) -> None:
    with pytest.raises(KeyboardInterrupt), Lock(client, site.key):
        signal.raise_signal(signal.SIGINT)
    assert site.operator.holder(site.key) is None


@pytest.mark.usefixtures("held")
def test_ctrl_c_while_waiting_ends_the_wait_and_leaves_nothing(site: Site, make_client: MakeClient) -> None:
    lock = Lock(make_client(), site.key)
    main = threading.main_thread().ident
    assert main is not None
    struck: list[float] = []

    def strike() -> None:
        eventually(lock.contenders)
        struck.append(time.monotonic())
        signal.pthread_kill(main, signal.SIGINT)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(strike)
        with stalls() as measured, pytest.raises(KeyboardInterrupt):
            lock.acquire(timeout=10)
        assert time.monotonic() - struck[0] < 0.5 + measured.slack
    assert eventually(lambda: lock.contenders() == ())


@pytest.mark.usefixtures("held")
def test_a_program_that_is_interrupted_while_it_waits_leaves_nothing(site: Site) -> None:
    program = """
say("waiting")
try:
    lock.acquire()
except KeyboardInterrupt:
    say("interrupted")
"""
    process = programs.start(program, site)
    eventually(lambda: site.operator.under(f"{site.key}/.wait/"), within=20)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=programs.TIMEOUT)
    # What is on stderr is Python's: a socket that was interrupted in its making is closed with a warning.
    assert (process.returncode, out.splitlines()) == (0, ["waiting", "interrupted"])
    assert site.operator.under(f"{site.key}/.wait/") == []


class Interrupting:
    """A transport that is struck by Ctrl-C at its n-th request, before it is sent or after its reply came."""

    def __init__(self, inner: Any, *, at: int, after: bool) -> None:
        self._inner = inner
        self._left = at
        self._after = after

    def send(self, request: Request, **options: Any) -> Response:
        self._left -= 1
        if self._left == 0 and not self._after:
            raise KeyboardInterrupt
        response: Response = self._inner.send(request, **options)
        if self._left == 0:
            raise KeyboardInterrupt
        return response

    def strike(self) -> None:
        """Have the next request interrupted."""
        self._left = 1

    def close(self) -> None:
        self._inner.close()

    def sweep(self) -> float:
        wait: float = self._inner.sweep()
        return wait

    def listen(self, on_refusal: Callable[[], object]) -> None:
        self._inner.listen(on_refusal)

    def forget(self) -> None:
        self._inner.forget()


@contextmanager
def interrupting(client: Client, *, at: int, after: bool) -> Generator[Interrupting, None, None]:
    """Have what the client sends pass such a transport while the block runs, however it ends."""
    runner = client._runner
    transport = runner._transport
    struck = Interrupting(transport, at=at, after=after)
    runner._transport = runner._io._transport = struck
    try:
        yield struck
    finally:
        runner._transport = runner._io._transport = transport


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", [1, 2, 3, 4])
@pytest.mark.parametrize("fair", [False, True], ids=["barging", "fair"])
def test_ctrl_c_at_any_request_leaves_nothing(
    site: Site, make_client: MakeClient, at: int, after: bool, fair: bool
) -> None:
    client = make_client()
    lock = Lock(client, site.key, fair=fair)
    interrupted = False
    with interrupting(client, at=at, after=after):
        try:
            with lock:
                pass
        except KeyboardInterrupt:
            interrupted = True
    assert interrupted or at > 3
    assert eventually(lambda: site.operator.holder(site.key) is None)
    assert eventually(lambda: site.operator.under(f"{site.key}/") == [])
    assert lock.acquire(timeout=5).is_held
    client.close()
    assert site.left_behind() == []
    assert client.pending_cleanup == 0


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("fair", [False, True], ids=["barging", "fair"])
def test_ctrl_c_amid_giving_up_leaves_nothing_though_its_traceback_is_kept(
    site: Site, make_client: MakeClient, monkeypatch: pytest.MonkeyPatch, fair: bool, after: bool
) -> None:
    """The traceback refers to the attempt, so nobody finds that it was dropped."""
    # Otherwise a machine that stalls leaves it to the background, and this thread sends nothing.
    monkeypatch.setattr(attempt, "GIVE_UP_BUDGET", 5.0)
    rival = Lock(make_client(), site.key)
    held = rival.acquire(timeout=5)
    give_up = attempt.Attempt._give_up

    async def amid(self: attempt.Attempt) -> None:
        struck.strike()
        await give_up(self)

    monkeypatch.setattr(attempt.Attempt, "_give_up", amid)
    client = make_client()
    mine = Lock(client, site.key, fair=fair)
    with interrupting(client, at=0, after=after) as struck, pytest.raises(KeyboardInterrupt) as kept:
        mine.acquire(timeout=0.5)
    assert eventually(lambda: rival.contenders() == ())
    assert held.release() is ReleaseOutcome.RELEASED
    assert in_thread(lambda: mine.acquire(timeout=5).release()) is ReleaseOutcome.RELEASED
    assert kept.tb is not None


WANTED: dict[str, Callable[[Client, str], Hold]] = {
    "lock": lambda client, key: Lock(client, key).acquire(timeout=10),
    "fair lock": lambda client, key: Lock(client, key, fair=True).acquire(timeout=10),
    "multi": lambda client, key: MultiLock(client, [key, f"{key}/b"]).acquire(timeout=10),
    "read": lambda client, key: ReadWriteLock(client, key).read.acquire(timeout=10),
    "write": lambda client, key: ReadWriteLock(client, key).write.acquire(timeout=10),
    "permit": lambda client, key: Semaphore(client, key, 1).acquire(timeout=10),
    "permits": lambda client, key: Semaphore(client, key, 2).acquire(permits=2, timeout=10),
}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("kind", WANTED)
def test_ctrl_c_as_the_hold_is_registered_leaves_nothing(
    site: Site, make_client: MakeClient, monkeypatch: pytest.MonkeyPatch, kind: str, after: bool
) -> None:
    """The server has granted it by then, so what was claimed for the attempt has to be given back."""
    client, grant, interrupted = make_client(), Holds.grant, False

    def struck(*args: Any, **given: Any) -> Handle:
        if after:
            grant(*args, **given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Holds, "grant", struck)
        try:
            WANTED[kind](client, site.key)
        except KeyboardInterrupt:
            interrupted = True
    assert interrupted
    rival = WANTED["write" if kind == "read" else kind](make_client(), site.key)
    assert rival.release() is ReleaseOutcome.RELEASED


def in_thread(function: Callable[[], T]) -> T:
    """Call it in a thread of its own, and return or raise what it does."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result(10)


@pytest.mark.parametrize("form", FORMS)
def test_a_block_may_be_left_in_another_thread(site: Site, client: Client, form: str) -> None:
    block = entered(Lock(client, site.key), form)
    with ExitStack() as stack:
        in_thread(lambda: stack.enter_context(block))
        assert site.operator.holder(site.key) is not None
    assert site.operator.holder(site.key) is None
    with ExitStack() as stack:
        stack.enter_context(block)
        in_thread(stack.pop_all().close)
    assert site.operator.holder(site.key) is None


def test_a_semaphores_block_may_be_left_in_another_thread(site: Site, client: Client) -> None:
    slots = Semaphore(client, site.key, 2)
    slots.__enter__()
    in_thread(lambda: slots.__exit__(None, None, None))
    assert slots.holders() == ()


def test_of_several_threads_blocks_each_ends_its_own(client: Client, site: Site) -> None:
    slots = Semaphore(client, site.key, 2)
    mine = slots.__enter__()
    other = threading.Thread(target=slots.__enter__)
    other.start()
    other.join(10)
    assert len(slots.holders()) == 2
    slots.__exit__(None, None, None)
    assert not mine.is_held
    assert len(slots.holders()) == 1
    slots.__exit__(None, None, None)  # the other thread has ended: it can only be meant
    assert slots.holders() == ()


def test_a_block_that_cannot_be_told_from_others_is_refused_with_the_way_out(
    client: Client, site: Site
) -> None:
    slots, entered, leave = Semaphore(client, site.key, 2), threading.Barrier(3), threading.Event()

    def hold() -> None:
        with slots:
            entered.wait(10)
            leave.wait(10)

    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(hold) for _ in range(2)]
        entered.wait(10)
        with pytest.raises(RuntimeError, match=r"left in another thread .* 'hold.release\(\)'"):
            slots.__exit__(None, None, None)
        leave.set()
        for future in futures:
            future.result(10)
    assert slots.holders() == ()


def test_one_held_object_may_be_entered_twice_by_an_owner_who_may_hold_twice(
    site: Site, client: Client
) -> None:
    block = ReentrantLock(client, site.key).hold(timeout=5)
    with block as outer:
        with block as inner:
            assert inner.fence == outer.fence
        assert site.operator.holder(site.key) == outer.session
    assert site.operator.holder(site.key) is None
    slots = Semaphore(client, f"{site.key}/slots", 2)
    both = slots.hold(timeout=5)
    with both, both:
        assert len(slots.holders()) == 2
    assert slots.holders() == ()
