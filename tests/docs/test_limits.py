"""What docs/guarantees.md says is not promised, shown where no other test does: the limits are real.

A test here that fails has found that the documentation promises too little, or that an alarm is missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from consul_coord import Client, Lock, LockLost, TxnFailed, TxnOp
from consul_coord.clock import VirtualClock
from consul_coord.events import FencesRestarted
from consul_coord.server import ReferenceServer
from consul_coord.testing.fixtures import time_passes
from tests.support.sites import eventually

if TYPE_CHECKING:
    from consul_coord import Event, Hold

    Server = ReferenceServer[VirtualClock]

KEY = "jobs/nightly"
BEYOND_FAILOVER = 60.0
"""Seconds after which the default session has ended and its lock-delay has passed."""


class Register:
    """Something outside Consul that a lock protects, and that refuses a fence lower than it has seen."""

    def __init__(self) -> None:
        self.highest = 0
        self.written: list[str] = []

    def write(self, text: str, *, fence: int) -> bool:
        if fence < self.highest:
            return False
        self.highest = fence
        self.written.append(text)
        return True


class Listener:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)


def other_client(server: Server) -> Client:
    return Client(address=server.address, clock=server.clock)


def test_a_pause_between_looking_and_acting_is_caught_by_the_fence_alone(
    consul_server: Server, consul_client: Client
) -> None:
    register, careless = Register(), []
    hold = Lock(consul_client, KEY).acquire(timeout=5)
    hold.check()  # the look; then the process stands still, and wakes behind it
    consul_server.clock.advance(BEYOND_FAILOVER)
    with other_client(consul_server) as other, Lock(other, KEY).hold(timeout=5) as later:
        assert register.write("later", fence=later.fence)
        careless.append("first")  # nothing stops the act itself
        assert not register.write("first", fence=hold.fence)
        with pytest.raises(TxnFailed):
            consul_client.txn(*hold.guard(), TxnOp.set("jobs/result", b"first"))
    assert register.written == ["later"]
    assert careless == ["first"]


def test_a_blocking_body_goes_on_after_the_loss(consul_server: Server, consul_client: Client) -> None:
    steps = []

    def work(hold: Hold) -> None:
        consul_server.clock.advance(BEYOND_FAILOVER)
        assert not hold.is_held
        steps.append("after the loss")

    with pytest.raises(LockLost):
        Lock(consul_client, KEY).run(work, timeout=5)
    assert steps == ["after the loss"]


def test_what_was_begun_under_a_lost_lock_is_half_done(consul_server: Server, consul_client: Client) -> None:
    def move(hold: Hold) -> None:
        consul_client.kv.put("accounts/a", "-10")
        consul_server.clock.advance(BEYOND_FAILOVER)
        hold.check()
        consul_client.kv.put("accounts/b", "+10")

    with pytest.raises(LockLost):
        Lock(consul_client, KEY).run(move, timeout=5)
    assert consul_client.kv.get("accounts/a").value is not None
    assert consul_client.kv.get("accounts/b").value is None


def test_by_force_another_may_have_it_before_its_holder_knows(
    consul_server: Server, consul_client: Client
) -> None:
    hold = Lock(consul_client, KEY).acquire(timeout=5)
    with other_client(consul_server) as other:
        # Time stands still, so the watch of a hold that was just granted has not begun.
        assert Lock(other, KEY).break_lock(hold.session)
        assert Lock(other, KEY).try_acquire() is not None
        assert hold.is_held
        assert not hold.verify()


def test_in_a_rebuilt_cluster_fences_start_anew_and_an_event_says_so() -> None:
    clock, listener = VirtualClock(), Listener()
    with ReferenceServer(clock=clock) as server:
        address = server.address
        client = Client(address=address, clock=clock, observer=listener)
        for number in range(100):  # what a cluster with a past has behind it
            client.kv.put(f"other/{number}", b"")
        earlier = Lock(client, KEY).acquire(timeout=5)
        earlier.release()
    with ReferenceServer(clock=clock, port=int(address.rpartition(":")[2])), client:
        with time_passes(clock):  # the client has to find out first
            later = Lock(client, KEY).acquire(timeout=30)
        assert later.fence < earlier.fence
        later.release()
        told = eventually(lambda: [event for event in listener.events if isinstance(event, FencesRestarted)])
        assert told == [FencesRestarted(KEY, earlier.fence, later.fence)]
