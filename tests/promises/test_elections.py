"""What candidates are told, in which order, and who is elected next and when."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import pytest

from consul_coord import LOCK_FLAGS, Client, LeaderElection, LeadershipLost, Lock, ReleaseOutcome
from consul_coord.clock import VirtualClock
from consul_coord.events import logger
from consul_coord.recipes.election.candidacy import LATE
from consul_coord.recipes.election.notes import HONOURED, heir_key
from tests.promises.conftest import SPEC, TTL
from tests.support.proxy import Fault, Lose
from tests.support.sites import eventually
from tests.support.stalls import stalls

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from consul_coord import Leadership, LossReason
    from consul_coord.clock import SystemClock
    from consul_coord.server import ReferenceServer
    from tests.promises.conftest import MakeClient
    from tests.support.proxy import FaultProxy
    from tests.support.sites import Operator

QUICK: Final = (0.01, 0.02)
"""Seconds that a candidate rests after a leadership."""
PATIENCE: Final = 15.0
SOON: Final = HONOURED / 2
"""Seconds within which an heir that was woken leads; one that was not leads after the others' patience."""


def stand(client: Client, key: str, **settings: Any) -> LeaderElection:
    """Start a candidate."""
    election = LeaderElection(client, key, retry_wait=QUICK, **settings)
    election.start()
    return election


ENDS: dict[str, Callable[[LeaderElection, Operator], object]] = {
    "resigned": lambda election, _: election.resign(pause=60),
    "lost": lambda election, operator: operator.delete(election.key),
}
ACTS: dict[str, Callable[[Leadership], object]] = {
    "check": lambda me: me.check(),
    "put": lambda me: me.put("late"),
    "ensure": lambda me: me.ensure(1.0),
    "beat": lambda me: me.beat(within=1.0),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_former_leader_is_told_so_whatever_it_does_also_while_nothing_answers(
    proxy: FaultProxy, client: Client, operator: Operator, key: str, end: str
) -> None:
    election = stand(client, key)
    me = election.wait_for_leadership(timeout=PATIENCE)
    ENDS[end](election, operator)
    assert me.lost.wait(PATIENCE)
    proxy.go_down()
    for act in ACTS.values():
        with pytest.raises(LeadershipLost):
            act(me)


@pytest.mark.parametrize("lose", [None, Lose.TIME, Lose.REQUEST, Lose.REPLY])
def test_who_resigns_for_a_while_is_no_candidate_from_then_on_however_long_its_release_takes(
    proxy: FaultProxy, client: Client, key: str, lose: Lose | None
) -> None:
    election = stand(client, key)
    election.wait_for_leadership(timeout=PATIENCE)
    before = len(proxy.requests)
    fault = None if lose is None else proxy.add(Fault(lose=lose, method="PUT", containing=b"unlock"))
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(election.resign, pause=60)
        if fault is not None:
            assert fault.hit.wait(PATIENCE)
            time.sleep(20 * QUICK[1])  # time itself: without the pause it would stand again by then
            fault.let_go()
        assert call.result(PATIENCE) is ReleaseOutcome.RELEASED
    time.sleep(20 * QUICK[1])
    assert [each.body for each in proxy.requests[before:] if b'"lock"' in each.body] == []


# -- heirs


@pytest.mark.parametrize("place", range(4))
def test_an_heir_at_any_place_leads_next_and_at_once(make_client: MakeClient, key: str, place: int) -> None:
    leading = stand(make_client(), key)
    me = leading.wait_for_leadership(timeout=PATIENCE)
    waiting = []
    for number in range(4):
        waiting.append(stand(make_client(), key, value=f"candidate {number}"))
        eventually(lambda count=number + 1: len(leading.candidates()) == count)  # type: ignore[misc]
    heir = waiting[place]
    leading.transfer_to(leading.candidates()[place].session)
    began = time.monotonic()
    term = heir.wait_for_leadership(timeout=PATIENCE).term
    assert time.monotonic() - began < SOON, "nobody woke the heir"
    assert term > me.term
    assert [each.term for each in waiting if each is not heir] == [None] * 3, "somebody led before"
    for election in (leading, *waiting):
        election.stop()


@pytest.mark.parametrize("ends", ["stop", "close"])
@pytest.mark.parametrize("times", [1, 2])
def test_an_heir_that_leaves_removes_the_note_that_names_it_however_often_that_was_written(
    make_client: MakeClient, operator: Operator, key: str, times: int, ends: str
) -> None:
    leading, client = stand(make_client(), key), make_client()
    leading.wait_for_leadership(timeout=PATIENCE)
    session = Lock(client, f"{key}/beside").acquire(timeout=5).session
    for _ in range(times - 1):
        operator.put(heir_key(key), b"another")
    operator.put(heir_key(key), session.encode())
    heir = stand(client, key)
    eventually(lambda: [each.session for each in leading.candidates()] == [session])
    heir.stop() if ends == "stop" else client.close()
    eventually(lambda: operator.entry(heir_key(key)) is None)
    assert leading.is_leader
    leading.stop()


def test_heirs_named_past_one_and_the_same_candidate_are_all_woken(make_client: MakeClient, key: str) -> None:
    first = stand(make_client(), key)
    first.wait_for_leadership(timeout=PATIENCE)
    passed = stand(make_client(), key)
    eventually(lambda: len(first.candidates()) == 1)
    leading, other = first, stand(make_client(), key)
    for _ in range(3):
        eventually(lambda election=leading: len(election.candidates()) == 2)  # type: ignore[misc]
        leading.transfer_to(leading.candidates()[1].session)
        began = time.monotonic()
        leading, other = other, leading
        leading.wait_for_leadership(timeout=PATIENCE)
        assert time.monotonic() - began < SOON, "nobody woke the heir"
        assert passed.term is None
    for election in (leading, other, passed):
        election.stop()


@pytest.mark.slow
def test_an_heir_that_never_comes_is_not_waited_for_beyond_its_time(
    make_client: MakeClient, operator: Operator, key: str
) -> None:
    leading, second = stand(make_client(), key), None
    leading.wait_for_leadership(timeout=PATIENCE)
    second = stand(make_client(), key)
    eventually(lambda: len(leading.candidates()) == 1)
    # It queues, it lives for ten minutes, and it never does anything.
    idle = operator.create(ttl="600s")
    assert operator.put(f"{key}/.wait/{idle}", b"", acquire=idle, flags=LOCK_FLAGS)
    eventually(lambda: len(leading.candidates()) == 2)
    leading.transfer_to(idle)
    began = time.monotonic()
    second.wait_for_leadership(timeout=HONOURED + PATIENCE)
    assert time.monotonic() - began < HONOURED + 1.5
    assert operator.exists(idle)
    for election in (leading, second):
        election.stop()


@pytest.mark.parametrize("leaves", ["by itself", "with its session"])
def test_an_heir_that_leaves_is_waited_for_no_longer(
    make_client: MakeClient, operator: Operator, key: str, leaves: str
) -> None:
    leading = stand(make_client(), key)
    leading.wait_for_leadership(timeout=PATIENCE)
    second = stand(make_client(), key)
    eventually(lambda: len(leading.candidates()) == 1)
    heir = operator.create(ttl="600s")
    assert operator.put(f"{key}/.wait/{heir}", b"", acquire=heir, flags=LOCK_FLAGS)
    eventually(lambda: len(leading.candidates()) == 2)
    leading.transfer_to(heir)
    time.sleep(0.2)
    assert second.term is None, "the heir goes first"
    if leaves == "by itself":
        operator.delete(f"{key}/.wait/{heir}")
    else:
        operator.destroy(heir)
    began = time.monotonic()
    second.wait_for_leadership(timeout=PATIENCE)
    assert time.monotonic() - began < SOON
    for election in (leading, second):
        election.stop()


# -- callbacks


class Told:
    """What callbacks are told, and when the candidate's owner has had its word."""

    def __init__(self) -> None:
        self.news: list[str] = []

    def settings(self) -> dict[str, Any]:
        return {
            "on_elected": lambda _: self.news.append("elected"),
            "on_lost": lambda _: self.news.append("lost"),
        }


class Slow(logging.Handler):
    """A log handler that takes its time, in which something happens: what logs stands still meanwhile."""

    def __init__(self, act: Callable[[], object]) -> None:
        super().__init__()
        self._act = act

    def emit(self, record: logging.LogRecord) -> None:
        self._act()

    def __enter__(self) -> Self:
        self._level = logger.level
        logger.setLevel(logging.DEBUG)
        logger.addHandler(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        logger.removeHandler(self)
        logger.setLevel(self._level)


@pytest.mark.parametrize("step", range(8))
def test_nobody_is_elected_once_the_stop_was_called(
    server: ReferenceServer[SystemClock], client: Client, key: str, step: int
) -> None:
    told, steps, led = Told(), itertools.count(), list[bool]()
    election = LeaderElection(client, key, retry_wait=QUICK, **told.settings())

    def act() -> None:
        if next(steps) == step and not led:
            led.append(election.is_leader)
            election.stop(timeout=0.0)

    with Slow(act), stalls() as machine:
        election.start()
        eventually(lambda: led or told.news == ["elected"])
        led.append(True)  # where it takes fewer steps
        election.stop()
    time.sleep(0.05)  # for what comes too late, if anything does
    if machine.slack < LATE or told.news:  # a callback whose turn comes later is not called
        assert told.news == (["elected", "lost"] if led[0] else [])
    assert not election.is_leader
    assert key not in server.state.kv or not server.state.kv[key].session


@pytest.mark.parametrize("wait", [0.0, 0.002, 0.004, 0.006, 0.01, 0.02, 0.05])
def test_in_blocking_code_nobody_is_told_of_an_election_long_after_the_stop(
    client: Client, key: str, wait: float
) -> None:
    told, at = list[str](), list[float]()

    def elected(_: Leadership) -> None:
        at.append(time.monotonic())
        told.append("elected")

    with stalls() as machine:
        election = stand(client, key, on_elected=elected, on_lost=lambda _: told.append("lost"))
        time.sleep(wait)
        election.stop()
        stopped = time.monotonic()
        assert not election.is_leader
        time.sleep(2 * LATE)  # for what comes too late, if anything does
    assert told in ([], ["elected", "lost"])
    assert all(each < stopped + LATE + machine.slack for each in at)


def test_who_is_still_busy_with_an_earlier_end_at_the_stop_hears_of_no_election_afterwards(
    client: Client, key: str
) -> None:
    """Nor of its end: a worker that was started then would be started for nobody."""
    news, free = list[str](), threading.Event()

    def lost(_: LossReason) -> None:
        news.append("lost")
        free.wait(PATIENCE)

    election = stand(client, key, on_elected=lambda _: news.append("elected"), on_lost=lost)
    election.wait_for_leadership(timeout=PATIENCE)
    eventually(lambda: news == ["elected"])
    election.resign()
    eventually(lambda: news == ["elected", "lost"])
    election.wait_for_leadership(timeout=PATIENCE)
    election.stop()
    done = threading.Event()
    client._runner.core.host.call_back(done.set)
    time.sleep(2 * LATE)  # time itself: a call that comes sooner counts as in time
    free.set()
    assert done.wait(PATIENCE)
    assert news == ["elected", "lost"]


def test_a_leadership_that_is_over_as_it_begins_is_told_in_order(
    server: ReferenceServer[SystemClock], key: str
) -> None:
    clock, told, expired = VirtualClock(), Told(), list[bool]()
    with Client(address=server.address, session=SPEC, clock=clock) as client:
        election = LeaderElection(client, key, retry_wait=QUICK, **told.settings())

        def expire() -> None:
            if not expired and election.is_leader:
                expired.append(True)
                clock.advance(2 * TTL)
                assert not election.is_leader

        with Slow(expire):
            election.start()
            eventually(lambda: expired and len(told.news) >= 2)
        election.stop()
    assert told.news[:2] == ["elected", "lost"]


@pytest.mark.parametrize("fate", [Lose.REPLY, Lose.REQUEST])
def test_a_loss_just_after_the_election_is_told_after_it(
    proxy: FaultProxy, client: Client, operator: Operator, key: str, fate: Lose
) -> None:
    told = Told()
    proxy.add(Fault(lose=fate, method="PUT", path="/v1/txn", containing=b"lock"))
    with LeaderElection(client, key, retry_wait=QUICK, **told.settings()) as election:
        for _ in range(3):
            me = election.wait_for_leadership(timeout=PATIENCE)
            operator.put(key, b"", release=me.session, flags=LOCK_FLAGS)
            assert me.lost.wait(PATIENCE)
    eventually(lambda: told.news[-1] == "lost")
    assert told.news == ["elected", "lost"] * (len(told.news) // 2)


# -- low priority


@pytest.mark.parametrize("before", ["the key was held before", "the key was never there"])
def test_a_short_leadership_within_the_delay_starts_it_afresh(
    make_client: MakeClient, key: str, before: str
) -> None:
    delay = 1.0
    other = Lock(make_client(), key)
    if before == "the key was held before":
        other.acquire(timeout=PATIENCE).release()
    low = stand(make_client(), key, priority_delay=delay)
    time.sleep(0.6 * delay)
    other.acquire(timeout=PATIENCE).release()
    vacant_since = time.monotonic()
    assert low.term is None, "elected before its delay was over"
    low.wait_for_leadership(timeout=PATIENCE)
    waited = time.monotonic() - vacant_since
    assert waited > delay - 0.05, f"elected {waited:.2f} s after a leadership"
    low.stop()
