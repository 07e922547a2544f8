"""What elections cost a process and the servers, and what a stalled or forked process believes."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
import weakref
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest

from consul_coord import Client, LeaderElection, LeadershipLost, LossReason, TxnFailed, TxnOp, leader
from consul_coord.clock import VirtualClock
from consul_coord.server import ReferenceServer
from tests.election.conftest import QUICK, SPEC
from tests.election.test_processes import tell
from tests.election.waiting import PATIENCE, Told, queued, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from consul_coord.sync.runner import Runner

MANY = 500
MINUTES = 5


@pytest.fixture
def still() -> Iterator[ReferenceServer[VirtualClock]]:
    """Yield a server whose clock stands still but for being advanced."""
    with ReferenceServer(clock=VirtualClock()) as server:
        yield server


@contextmanager
def leaving_in_time(clock: VirtualClock) -> Iterator[ExitStack]:
    """Yield a stack that is left while the clock runs: where it stands still, nobody tries a second time."""
    left = threading.Event()

    def run() -> None:
        while not left.wait(0.01):
            clock.advance(0.01)

    running, going_on = ExitStack(), threading.Thread(target=run, name="clock")
    try:
        yield running
    finally:
        going_on.start()
        try:
            running.close()
        finally:
            left.set()
            going_on.join()


@pytest.mark.slow
def test_many_elections_share_one_thread_and_one_session(agent_address: str, key: str) -> None:
    before = set(threading.enumerate())
    with Client(address=agent_address) as client, ExitStack() as running:
        elections = [
            running.enter_context(LeaderElection(client, f"{key}/{number}", retry_wait=QUICK))
            for number in range(MANY)
        ]
        until(lambda: all(election.is_leader for election in elections), "all lead")
        ours = {thread.name for thread in set(threading.enumerate()) - before}
        assert ours == {"consul-coord-loop"}
        assert client.stats().sessions_created == 1
        assert len({election.term for election in elections}) == MANY


@pytest.mark.parametrize("place", ["head", "follower"])
def test_a_waiting_candidate_costs_one_query_for_each_renewal(
    still: ReferenceServer[VirtualClock], key: str, place: str
) -> None:
    with leaving_in_time(still.clock) as running:

        def stand() -> LeaderElection:
            client = running.enter_context(Client(address=still.address, clock=still.clock))
            return running.enter_context(LeaderElection(client, key))

        leading = stand()
        leading.wait_for_leadership(timeout=PATIENCE)
        waiting = stand()
        queued(leading, 1)
        if place == "follower":
            waiting = stand()
            queued(leading, 2)
        core = waiting._runner.core
        sessions = [*core.sessions, *leading._runner.core.sessions]
        before = core.stats()
        for _ in range(MINUTES * 60):
            still.clock.advance(1.0)
            until(lambda: all(each.due > still.clock.now() for each in sessions), "all are renewed")
        after = core.stats()
        renewals = after.renewals - before.renewals
        assert MINUTES * 7 <= renewals <= MINUTES * 10
        idle = (after.requests - before.requests) - renewals
        tell(f"a waiting candidate ({place}): {idle / MINUTES:.2f} requests a minute besides renewals")
        assert leading.is_leader
        assert 0 < idle <= 1.3 * renewals  # a second query for each would be twice as many


def test_a_stalled_leader_finds_itself_no_leader_at_its_first_look(
    still: ReferenceServer[VirtualClock], key: str
) -> None:
    told = Told()

    class Stalling:
        """The clock of a process that is stopped: nothing of it runs while the time of others passes."""

        def __init__(self) -> None:
            self.passed = 0.0

        def now(self) -> float:
            return time.monotonic() + self.passed

    clock = Stalling()
    with Client(address=still.address, clock=clock) as client:
        election = LeaderElection(client, key, on_lost=told.say, retry_wait=(60.0, 60.0))
        with election:
            me = election.wait_for_leadership(timeout=PATIENCE)
            clock.passed += 20.0
            assert not election.is_leader
            assert election.leadership is None
            assert me.reason is LossReason.EXPIRED
            with pytest.raises(LeadershipLost):
                me.check()
            told.wait_for(LossReason.EXPIRED)
            still.clock.advance(31.0)  # the session ends on the server as well
            with Client(address=still.address) as other, pytest.raises(TxnFailed):
                other.txn(*me.guard(), TxnOp.set(f"{key}-written", b"late"))


FORKING = """
import os, sys, time, warnings
from consul_coord import Client, LeaderElection

warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads, which is what this is about
client = Client(address=sys.argv[1])
lost = []
election = LeaderElection(client, sys.argv[2], on_lost=lost.append, retry_wait=(0.01, 0.02))
election.start()
election.wait_for_leadership(timeout=10)
child = os.fork()
if child == 0:
    assert not election.is_leader
    deadline = time.monotonic() + 10
    while not lost and time.monotonic() < deadline:
        time.sleep(0.01)
    assert lost == ["forked"], lost
    began = time.monotonic()
    election.stop()
    assert time.monotonic() - began < 1
    election.start()
    while len(election.candidates()) != 1:
        time.sleep(0.01)
    assert not election.is_leader
    client.close()
    os._exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status
assert election.is_leader
assert lost == []
client.close()
"""


def test_a_forked_child_does_not_lead_and_may_stand_itself(reference_address: str, key: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", FORKING, reference_address, key],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr


STARTING = """
import os, sys, threading, time, warnings
from consul_coord import Client, LeaderElection

warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads, which is what this is about
client = Client(address=sys.argv[1])
begun, over = threading.Event(), threading.Event()
def slow(*_, **__):  # what another thread is in the midst of at the fork
    begun.set()
    over.wait(20)
client._runner.call = slow
election = LeaderElection(client, sys.argv[2])
starting = threading.Thread(target=election.start)
starting.start()
assert begun.wait(10)
child = os.fork()
if child == 0:
    del client._runner.call
    election.start()
    election.wait_for_leadership(timeout=20)
    election.stop()
    client.close()
    os._exit(0)
_, status = os.waitpid(child, 0)
over.set()
starting.join()
assert status == 0, status
client.close()
"""


def test_a_fork_while_another_thread_starts_an_election(reference_address: str, key: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", STARTING, reference_address, key],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_dropped_election_stands_for_as_long_as_the_process_runs(reference_address: str, key: str) -> None:
    def begin() -> weakref.ref[Runner]:
        client = Client(address=reference_address, session=SPEC)
        LeaderElection(client, key).start()
        return weakref.ref(client._runner)

    reference = begin()
    gc.collect()
    with Client(address=reference_address) as watching:
        until(lambda: leader(watching, key) is not None, "elected")
    dropped = reference()
    assert dropped is not None
    dropped.close(5.0)
