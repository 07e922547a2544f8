"""What the simulator has found, each as a world of its own without chance: one process, and what it does."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from consul_coord.errors import (
    AcquireCancelled,
    AcquireTimeout,
    ClientClosed,
    ConsulCoordError,
    LeadershipLost,
    SessionNotFound,
)
from consul_coord.http.backoff import LONGEST_PAUSE
from consul_coord.http.endpoints import kv
from consul_coord.http.endpoints import session as session_endpoint
from consul_coord.http.retry import send_once
from consul_coord.models import LOCK_FLAGS, SEMAPHORE_FLAGS, SessionSpec
from consul_coord.models.session import SERF_HEALTH
from consul_coord.recipes import client as coordinator
from consul_coord.recipes.cleanup.tasks import SWEEPS
from consul_coord.recipes.contend import queue as waitqueue
from consul_coord.recipes.contend import recipe
from consul_coord.recipes.election import asking, leader, notes
from consul_coord.recipes.election import candidacy as standing
from consul_coord.recipes.hold.holds import release
from consul_coord.recipes.lock.attempt import LockAttempt
from consul_coord.recipes.lock.lock import LockObject
from consul_coord.recipes.lock.plan import LockPlan
from consul_coord.recipes.semaphore.plan import SemaphorePlan
from consul_coord.recipes.semaphore.semaphore import SemaphoreObject
from consul_coord.server.acl import Rule
from consul_coord.testing import Simulation
from consul_coord.testing.simulation.driver import SimCalls
from consul_coord.testing.simulation.plan import ENOUGH
from consul_coord.testing.simulation.program import Wakeup
from consul_coord.testing.simulation.world import World
from consul_coord.testing.simulation.worlds import draw_calm, draw_mixed, draw_strike, draw_with_limit
from tests.simulation.mutations import Mutation

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator
    from typing import Any

    from consul_coord.http.messages import Request
    from consul_coord.models import LeaderInfo
    from consul_coord.recipes.hold.grant import Handle
    from consul_coord.testing.simulation.driver import SimIO
    from consul_coord.testing.simulation.process import Process

KEY = "jobs/a"
SPEC = SessionSpec(ttl=8.0, lock_delay=0.0, allow_unbounded=True)


def a_lock(*, session: SessionSpec | None = None) -> LockObject:
    return LockObject(
        LockPlan(
            keys=(KEY,),
            value=b"",
            flags=LOCK_FLAGS,
            accept_flags=frozenset(),
            fair=False,
            reentrant=False,
            session=session,
        )
    )


class Scene:
    """A world where nothing goes wrong by itself."""

    def __init__(self, *, connections: int = 0) -> None:
        self.world = World(
            replace(
                draw_mixed(0),
                processes=0,
                foreign=0,
                keys=(KEY,),
                pools=(),
                elections=(),
                spec=SPEC,
                fates={},
                chaos={},
                skew=0.0,
                connections=connections,
            )
        )
        self.process: Process = self.world.new_process("p")

    def play(self, program: Callable[[SimIO], Coroutine[Any, Any, object]], *, seconds: float) -> None:
        """Run a program; it must end within so many virtual seconds, without an error."""
        task = self.process.spawn(program, name="program")
        self.world.advance(self.world.scheduler.now + seconds, unless=task.done.is_set)
        assert self.world.judge.violation is None
        assert task.done.is_set()

    async def acquire(
        self,
        io: SimIO,
        locked: LockObject,
        *,
        timeout: float | None = None,
    ) -> Handle:
        return await self.process.call(
            io.task,
            lambda io: recipe.acquire(io, self.process.core, locked, timeout=timeout),
            interrupt=recipe.Waiting(locked),
        )


@pytest.fixture
def scene() -> Generator[Scene]:
    scene = Scene()
    yield scene
    for process in scene.world.processes:
        process.end()


def test_a_cancelled_acquire_that_is_applied_late_leaves_nothing_locked(scene: Scene) -> None:
    async def program(io: SimIO) -> None:
        lock = a_lock()
        scene.world.network.delay_next("barge", 0.5)
        scene.process.alarm(io.now() + 0.1, lambda: lock.cancel(scene.process.core))
        with pytest.raises(AcquireCancelled):
            await scene.acquire(io, lock)

    scene.play(program, seconds=1.0)
    scene.world.advance(scene.world.scheduler.now + sum(SWEEPS[:2]))
    assert [entry.key for entry in scene.world.cluster.under(KEY)] == [KEY]
    assert scene.world.cluster.holder(KEY) == ""


def test_a_hold_dropped_together_with_its_locks_own_session_gives_up_its_turn(scene: Scene) -> None:
    async def program(io: SimIO) -> None:
        locked = a_lock(session=SPEC)
        circle: list[object] = [locked, await scene.acquire(io, locked)]
        circle.append(circle)
        del circle, locked
        gc.collect()
        await scene.acquire(io, a_lock(session=SPEC), timeout=5.0)

    scene.play(program, seconds=6.0)


def test_what_one_lock_has_left_does_not_stop_another_of_the_same_client_with_a_session_of_its_own(
    scene: Scene,
) -> None:
    async def program(io: SimIO) -> None:
        first, second = a_lock(session=SPEC), a_lock(session=SPEC)
        for locked in (first, second):
            handle = await scene.acquire(io, locked)
            await release(io, scene.process.core.holds, handle.grant)
        scene.process.core.queue_memory.saw_waiters(KEY, waiting=True)  # so that it queues
        scene.world.network.delay_next("join", 0.5)
        scene.process.alarm(io.now() + 0.1, lambda: first.cancel(scene.process.core))
        with pytest.raises(AcquireCancelled):
            await scene.acquire(io, first)
        await io.sleep(0.6)
        await scene.acquire(io, second, timeout=2 * SWEEPS[0])

    scene.play(program, seconds=5.0)


def a_semaphore(limit: int, *, lock_delay: float) -> SemaphoreObject:
    plan = SemaphorePlan(
        prefix="pool/a",
        value=b"",
        flags=SEMAPHORE_FLAGS,
        accept_flags=frozenset(),
        fair=True,
        session=SessionSpec(ttl=8.0, lock_delay=lock_delay, node_checks=(SERF_HEALTH,)),
    )
    return SemaphoreObject(plan, limit)


def a_candidacy(
    process: Process,
    *,
    priority_delay: float = 0.0,
    on_change: Callable[[LeaderInfo | None], object] | None = None,
) -> standing.Candidacy:
    plan = standing.ElectionPlan(
        key=KEY,
        retry_wait=(0.0, 0.0),
        priority_delay=priority_delay,
        health_interval=1.0,
        on_elected=None,
        on_lost=None,
        on_change=on_change,
        health=None,
    )
    locked = standing.lock_of(key=KEY, value=b"", session=None, accept_flags=())
    return standing.Candidacy(process.core, plan, locked, SimCalls(process.host), keeps=None)


@pytest.mark.parametrize("touched", [False, True])
def test_a_place_in_a_queue_that_may_not_be_seen_any_more_is_given_up(scene: Scene, *, touched: bool) -> None:
    cluster = scene.world.cluster
    other = scene.world.new_process("q")

    async def holder(io: SimIO) -> None:
        handle = await recipe.acquire(io, other.core, a_lock(), timeout=None)
        await io.sleep(2.0)
        await release(io, other.core.holds, handle.grant)

    async def waiter(io: SimIO) -> None:
        await io.sleep(0.5)
        handle = await scene.acquire(io, a_lock())
        await release(io, scene.process.core.holds, handle.grant)

    def revoke() -> None:
        if touched:  # as a leader does, who names its heir
            (own,) = cluster.under(waitqueue.directory(KEY))
            cluster.overwrite(own.key, b"a note")
        cluster.permit((Rule("key", waitqueue.directory(KEY), "deny", prefix=True),))
        cluster.stop()  # so that whoever waits looks again
        cluster.start()

    other.spawn(holder, name="holder")
    scene.world.scheduler.after(1.0, revoke)
    scene.world.scheduler.after(3.0, lambda: cluster.permit(()))
    scene.play(waiter, seconds=4.0)
    scene.world.advance(scene.world.scheduler.now + LONGEST_PAUSE)
    assert cluster.under(waitqueue.directory(KEY)) == []


def test_a_place_that_is_not_given_up_is_seen(scene: Scene) -> None:
    kept = Mutation(
        "own place left in a queue that may not be seen any more",
        LockAttempt,
        "_move_without_queue",
        "self.client.reaper.add(RemoveKey(self._own))",
        "pass",
    )
    with kept.planted(), pytest.raises(AssertionError, match=waitqueue.directory(KEY)):
        test_a_place_in_a_queue_that_may_not_be_seen_any_more_is_given_up(scene, touched=False)


def test_a_slot_that_was_given_back_is_not_behind_its_lock_delay(scene: Scene) -> None:
    async def program(io: SimIO) -> None:
        slots = a_semaphore(2, lock_delay=60.0)
        first = await recipe.acquire(io, scene.process.core, slots, timeout=None)
        second = await recipe.acquire(io, scene.process.core, slots, timeout=None)  # writes the record
        waiting = io.spawn(
            lambda io: recipe.acquire(io, scene.process.core, slots, timeout=None), name="waiter"
        )
        await io.sleep(1.0)
        await release(io, scene.process.core.holds, first.grant)
        await io.wait(waiting.done, deadline=io.now() + 1.0)
        assert waiting.done.is_set()
        assert second.grant.is_held(io.now())

    scene.play(program, seconds=4.0)


def test_a_leader_who_resigned_meanwhile_is_told_so_by_proclaim(scene: Scene) -> None:
    async def program(io: SimIO) -> None:
        candidacy = a_candidacy(scene.process)
        await asking.start(io, candidacy)
        _, hold = await asking.wait_for_leadership(io, candidacy, timeout=None)
        scene.process.alarm(io.now() + 0.1, lambda: candidacy.stand_aside(1.0))
        scene.world.network.delay_next("note", 0.3)
        with pytest.raises(LeadershipLost):
            await asking.proclaim(io, candidacy, hold, b"value")
        await asking.stop(io, candidacy, timeout=1.0)

    scene.play(program, seconds=3.0)


def test_a_leader_does_not_name_an_heir_that_leaves_meanwhile(scene: Scene) -> None:
    other = scene.world.new_process("p")

    async def program(io: SimIO) -> None:
        leading, leaving = a_candidacy(scene.process), a_candidacy(other)
        await asking.start(io, leading)
        _, hold = await asking.wait_for_leadership(io, leading, timeout=5.0)
        other.spawn(lambda io: asking.start(io, leaving), name="candidate")
        await io.sleep(0.5)
        heir = next(entry.session for entry in scene.world.cluster.under(f"{KEY}/") if entry.session)
        scene.world.network.delay_next("name-heir", 1.0)
        scene.process.alarm(io.now() + 0.3, leaving.stop)
        with pytest.raises(SessionNotFound):
            await asking.transfer(io, leading, hold, heir)
        assert leading.leading(io.now()) is hold
        assert scene.world.cluster.entry(notes.heir_key(KEY)) is None
        await asking.stop(io, leading, timeout=1.0)

    scene.play(program, seconds=8.0)


@pytest.mark.parametrize("proclaims", [0, 1, 2])
def test_a_leadership_leaves_no_note_of_its_term(scene: Scene, proclaims: int) -> None:
    term = notes.term_key(KEY)

    async def program(io: SimIO) -> None:
        candidacy = a_candidacy(scene.process)
        await asking.start(io, candidacy)
        _, hold = await asking.wait_for_leadership(io, candidacy, timeout=5.0)
        for number in range(proclaims):
            await asking.proclaim(io, candidacy, hold, f"value {number}".encode())
        assert scene.world.cluster.entry(term) is not None
        await asking.stop(io, candidacy, timeout=1.0)
        await io.sleep(1.5)
        assert scene.world.cluster.entry(term) is None

    scene.play(program, seconds=4.0)


def test_a_late_note_of_an_earlier_term_is_none_of_a_later_leadership(scene: Scene) -> None:
    """Also where the leader is the same session again."""

    async def program(io: SimIO) -> None:
        candidacy = a_candidacy(scene.process)
        await asking.start(io, candidacy)
        _, hold = await asking.wait_for_leadership(io, candidacy, timeout=5.0)
        scene.process.alarm(io.now() + 0.1, lambda: candidacy.stand_aside(0.3))
        scene.world.network.delay_next("note", 1.5)
        with pytest.raises(LeadershipLost):
            await asking.proclaim(io, candidacy, hold, b"value")
        await io.sleep(0.5)
        _, again = await asking.wait_for_leadership(io, candidacy, timeout=5.0)
        assert again.session == hold.session
        found = await leader.leader(io, scene.process.core, KEY)
        assert found is not None
        assert found.term == again.fence > hold.fence
        await asking.stop(io, candidacy, timeout=1.0)

    scene.play(program, seconds=5.0)


def test_a_candidate_of_low_priority_rides_out_what_passes(scene: Scene) -> None:
    async def program(io: SimIO) -> None:
        candidacy = a_candidacy(scene.process, priority_delay=1.0)
        await asking.start(io, candidacy)
        await io.sleep(0.5)
        scene.process.link.cut = True
        await io.sleep(2 * scene.process.core.timeout)
        scene.process.link.mend()
        await asking.wait_for_leadership(io, candidacy, timeout=5.0)
        assert candidacy.problem is None
        await asking.stop(io, candidacy, timeout=1.0)

    scene.play(program, seconds=40.0)


def test_a_candidate_of_low_priority_does_not_queue_behind_who_leads_by_then(scene: Scene) -> None:
    cluster, other = scene.world.cluster, scene.world.new_process("p")

    async def hold(io: SimIO) -> None:
        handle = await recipe.acquire(io, other.core, a_lock(), timeout=None)
        await io.sleep(2.0)
        await release(io, other.core.holds, handle.grant)

    async def program(io: SimIO) -> None:
        candidacy = a_candidacy(scene.process, priority_delay=0.5)
        scene.world.network.delay_next("create", 0.6)  # after the vacancy, before the queue
        await asking.start(io, candidacy)
        await io.sleep(0.8)
        other.spawn(hold, name="holder")
        await io.sleep(0.1)
        began = io.now()
        while cluster.holder(KEY):
            assert cluster.under(waitqueue.directory(KEY)) == []
            await io.sleep(0.05)
        assert io.now() > began + 1.5
        await asking.wait_for_leadership(io, candidacy, timeout=5.0)
        await asking.stop(io, candidacy, timeout=1.0)

    scene.play(program, seconds=12.0)


def test_a_candidate_of_low_priority_sees_a_vacancy_that_is_like_an_earlier_one(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[Handle] = []
    link, cluster, other = scene.process.link, scene.world.cluster, scene.world.new_process("p")

    async def hold(io: SimIO) -> None:
        held.append(await recipe.acquire(io, other.core, a_lock(), timeout=None))

    async def program(io: SimIO) -> None:
        candidacy = a_candidacy(scene.process, priority_delay=1.0)
        await asking.start(io, candidacy)
        await io.sleep(0.5)  # the key is absent, as far as the candidate has seen
        other.spawn(hold, name="holder")
        send = link.send

        def lose_the_watch(request: Request, *rest: Any) -> Callable[[], None]:
            link.cut = "index" in dict(request.params)
            return send(request, *rest)

        monkeypatch.setattr(link, "send", lose_the_watch)
        await io.sleep(1.0)  # a second look found a holder, and the watch for a change after it was lost
        assert link.cut
        other.end()
        for session in cluster.sessions():
            cluster.destroy_session(session.id)
        cluster.delete(KEY)
        monkeypatch.undo()
        link.mend()
        await asking.wait_for_leadership(io, candidacy, timeout=45.0)
        await asking.stop(io, candidacy, timeout=1.0)

    scene.play(program, seconds=60.0)


def test_a_closed_client_does_not_wait_for_sessions_that_late_requests_may_make(scene: Scene) -> None:
    async def program(io: SimIO) -> None:
        scene.process.link.cut = True
        lock = a_lock()
        scene.process.alarm(io.now() + 0.1, lambda: lock.cancel(scene.process.core))
        with pytest.raises(AcquireCancelled):
            await scene.acquire(io, lock)
        scene.process.link.mend()
        scene.process.core.begin_close()
        await coordinator.close(io, scene.process.core, deadline=io.now() + 5.0)
        assert scene.process.core.reaper.pending == 0

    scene.play(program, seconds=10.0)


def test_a_leadership_that_begins_and_ends_after_a_modest_candidates_last_look_is_no_fault() -> None:
    # The judge took the candidate for one that had not waited for its delay.
    Simulation(seed=5012, plan=draw_mixed(5012)).run()


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(407, id="a note that the same session had written before stayed for ever"),
        pytest.param(683, id="the judge forgot that each head of the queue honours an heir for as long"),
        pytest.param(983, id="the judge forgot that a fast clock honours an heir for less"),
    ],
)
def test_heirs_and_notes(seed: int) -> None:
    Simulation(seed=seed, plan=draw_mixed(seed)).run()


def test_a_client_that_has_closed_sends_nothing() -> None:
    # A release that still waited for its answer tried again, which connections that are closed refuse.
    scene = Scene()

    async def program(io: SimIO) -> None:
        await scene.process.close_late(io)
        with pytest.raises(ClientClosed):
            await send_once(io, kv.get(KEY), deadline=io.now() + 1.0)

    scene.play(program, seconds=10.0)
    Simulation(seed=30332, plan=draw_mixed(30332)).run()


def test_a_client_that_runs_something_long_after_it_has_closed_breaks_a_rule() -> None:
    scene = Scene()
    scene.process.spawn(lambda io: io.sleep(60.0), name="what stays")
    scene.world.advance(1.0)
    scene.world.judge.promises.is_gone(scene.process)
    violation = scene.world.judge.violation
    assert violation is not None
    assert violation.rule == "nothing left"
    assert "what stays" in violation.how


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(31080, id="the judge forgot an outage that had begun before a process did"),
        pytest.param(
            31239, id="nobody looked after an unanswered take of several keys that waited for its own client"
        ),
        pytest.param(31433, id="the judge counted the requests of foreign clients"),
    ],
)
def test_other_runs(seed: int) -> None:
    Simulation(seed=seed, plan=draw_mixed(seed)).run()


@pytest.mark.slow
def test_leaders_that_follow_each_other_quickly_are_seen_in_time() -> None:
    # The judge allowed half a second.
    Simulation(seed=142, plan=draw_calm(142)).run()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [31431, 31514])
def test_a_release_of_a_slot_that_was_not_permitted_is_no_loss(seed: int) -> None:
    # It said that the hold had been lost before, as another had released it.
    Simulation(seed=seed, plan=draw_mixed(seed)).run()


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(336, id="a connection lay idle for long whose reply had come after its caller went"),
        pytest.param(445, id="a query that had waited for its turn was given up before its reply was due"),
        pytest.param(40017, id="the end of a call closed the only connection, on which a reply was due"),
        pytest.param(7124, id="a release waits for the query of another user, begun when there was room"),
    ],
)
def test_connections_at_the_limit(seed: int) -> None:
    Simulation(seed=seed, plan=draw_with_limit(seed)).run()


def test_a_join_that_its_connection_lost_is_looked_after_although_it_was_sent_again() -> None:
    # The connection sent it again by itself, so nobody looked for the first one, which came late.
    plan = replace(draw_strike(1017), connections=100)
    Simulation(seed=1017, plan=plan).run()


def test_a_sweep_that_had_to_wait_for_the_own_hold_comes_soon_after_it() -> None:
    # The next look was ten seconds later, and after a hold of a minute none was left.
    Simulation(seed=70081, plan=draw_strike(70081)).run()


@pytest.mark.slow
def test_a_caller_in_line_whose_turn_came_while_it_asked_has_no_place_to_report() -> None:
    # It said that other waiters were first, and that its place was 0.
    Simulation(seed=140000256).run()


@pytest.mark.parametrize("queues", [True, False])
def test_an_old_leader_that_calls_a_key_free_has_no_client_try_in_a_loop(scene: Scene, queues: bool) -> None:
    """It answers plain reads from what it knew when it lost the lead; the tries go to the new leader."""
    keys = (KEY, "jobs/b") if queues else (KEY,)
    plan = LockPlan(
        keys=keys, value=b"", flags=LOCK_FLAGS, accept_flags=frozenset(), fair=False, reentrant=False
    )
    lock, core, cluster = LockObject(plan), scene.process.core, scene.world.cluster
    sent: list[int] = []

    async def program(io: SimIO) -> None:
        handle = await scene.acquire(io, lock)
        await release(io, core.holds, handle.grant)
        if not queues:
            core.queue_memory.may_not_queue(KEY, io.now())
        cluster.be_followed()
        cluster.lock(keys[-1], cluster.open_session(ttl=60.0))
        before = io.task.sent
        with pytest.raises(AcquireTimeout):
            await scene.acquire(io, lock, timeout=5.0)
        sent.append(io.task.sent - before)
        cluster.be_alone()

    scene.play(program, seconds=8.0)
    assert sent[0] < 20


def test_a_process_whose_user_reads_a_session_now_and_then_is_not_at_rest() -> None:
    """The judge took that for a blocking query, of which each has a connection."""
    scene, counted = Scene(connections=ENOUGH), list[int]()

    async def program(io: SimIO) -> None:
        handle = await scene.acquire(io, a_lock())
        for _ in range(8):
            await io.sleep(2.0)
            await send_once(io, session_endpoint.info(handle.grant.session), deadline=io.now() + 1.0)
            counted.append(scene.process.connections)
        await release(io, scene.process.core.holds, handle.grant)

    scene.play(program, seconds=20.0)
    assert counted[1:] == [2] * 7


@pytest.mark.slow
@pytest.mark.parametrize("seed", [97001340, 97005748, 98005716])
def test_a_candidate_whose_user_waits_again_and_again_is_not_at_rest(seed: int) -> None:
    # Each time its user waits in vain, it reads the leader's session.
    Simulation(seed=seed).run()


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(98007487, id="it closed the only one that it had got"),
        pytest.param(120000158, id="renewals that waited for each other must not keep one"),
    ],
)
def test_what_a_client_keeps_of_its_connections(seed: int) -> None:
    Simulation(seed=seed).run()


@pytest.mark.parametrize(
    ("others", "priority_delay"),
    [
        pytest.param(0, 0.0, id="leads"),
        pytest.param(1, 0.0, id="is first in the queue"),
        pytest.param(3, 0.0, id="is third in the queue"),
        pytest.param(1, 1.0, id="waits for a vacancy"),
    ],
)
def test_a_candidate_that_reports_the_leader_keeps_one_connection(others: int, priority_delay: float) -> None:
    """It had one for its hold or its place in the queue, and one for the leader."""
    scene = Scene(connections=ENOUGH)
    seen: list[str] = []
    before = [a_candidacy(scene.world.new_process("q")) for _ in range(others)]

    def changed(leader: LeaderInfo | None) -> None:
        if leader is not None and seen[-1:] != [leader.session]:
            seen.append(leader.session)

    async def program(io: SimIO) -> None:
        for candidacy in before:
            candidacy.client.host.spawn(candidacy.run, name="candidate")
            await io.sleep(0.1)
        reporting = a_candidacy(scene.process, priority_delay=priority_delay, on_change=changed)
        await asking.start(io, reporting)
        await io.sleep(10.0)  # then the connections that it began with are closed
        for _ in range(150):
            assert scene.process.connections == 1
            await io.sleep(0.1)
        leaders: list[str] = []
        for candidacy in (*before, reporting):
            await io.sleep(priority_delay + 0.1)
            hold = candidacy.leading(io.now())
            assert hold is not None
            leaders.append(hold.session)
            assert seen == leaders
            candidacy.stop()

    scene.play(program, seconds=40.0)
    for process in scene.world.processes:
        process.end()


def test_a_candidate_hears_of_its_own_leadership_once(scene: Scene) -> None:
    # It knows of it by its grant first, without its node, and then by its reading of the key.
    told: list[LeaderInfo | None] = []

    async def program(io: SimIO) -> None:
        candidacy = a_candidacy(scene.process, on_change=told.append)
        await asking.start(io, candidacy)
        _, hold = await asking.wait_for_leadership(io, candidacy, timeout=5.0)
        await io.sleep(2.0)
        assert [(leader.session, leader.term) for leader in told if leader] == [(hold.session, hold.fence)]
        candidacy.stop()

    scene.play(program, seconds=6.0)


@pytest.mark.parametrize("lost", [True, False])
def test_whoever_shares_a_query_has_its_answer_or_asks_when_it_has_none(scene: Scene, *, lost: bool) -> None:
    cluster, answers = scene.world.cluster, list[int]()

    async def ask(io: SimIO) -> None:
        call = kv.watch(KEY, index=cluster.under(KEY)[0].modify_index, wait=5.0)
        try:
            while (answer := await scene.process.core.watches.ask(io, call)) is None:
                pass
        except ConsulCoordError:
            answers.append(0)
        else:
            answers.append(answer.index)

    async def program(io: SimIO) -> None:
        await send_once(io, kv.put(KEY, b"1"), deadline=io.now() + 1.0)
        tasks = [scene.process.spawn(ask, name="ask") for _ in range(2)]
        await io.sleep(1.0)
        if lost:
            cluster.stop()
            cluster.start()
            await io.sleep(1.0)
        cluster.overwrite(KEY, b"2")
        for task in tasks:
            await io.wait(task.done, deadline=io.now() + 1.0)
        index = cluster.under(KEY)[0].modify_index
        assert answers == ([0, index] if lost else [index, index])
        assert [task.sent for task in tasks] == ([1, 1] if lost else [1, 0])

    scene.play(program, seconds=8.0)


def test_a_candidate_behind_one_that_does_nothing_names_no_leader_of_long_ago() -> None:
    # It had not read who leads since it followed that one, and its caller began to wait much later.
    Simulation(seed=2982, plan=draw_mixed(2982)).run()


def test_a_further_slot_of_a_hold_may_be_looked_at_late_until_the_first_one_goes() -> None:
    # An operator released the one, which is looked at between queries, and then the other, which is heard of.
    Simulation(seed=800006747).run()


def test_closing_waits_for_an_election_under_way_before_it_destroys_the_session() -> None:
    # The key was granted as the client closed, and got the lock-delay: nobody led for so long.
    Simulation(seed=190000756).run()


def test_a_reply_that_is_still_to_come_keeps_nothing_of_a_call_that_has_ended() -> None:
    stepped: list[object] = []
    runner = SimpleNamespace(crashed=False, soon=lambda action, thread: stepped.append((action, thread)))
    task = SimpleNamespace(runner=runner, step="step", thread="a thread", parked_at=None)
    wakeup = Wakeup(task)  # type: ignore[arg-type]
    handle = a_lock()
    kept = weakref.ref(handle)

    async def call() -> None:
        await wakeup

    program = call()
    program.send(None)
    wakeup.fire(partial(id, handle))
    del handle
    with pytest.raises(StopIteration):
        program.send(None)
    del program
    assert kept() is None
    wakeup.fire(lambda: "late")
    assert stepped == [("step", "a thread")]
