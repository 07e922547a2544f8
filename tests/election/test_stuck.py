"""Leaders that are stuck: the leadership ends, and the next one is elected once nobody is at work."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from consul_coord import (
    HoldState,
    InvalidArgument,
    LeaderElection,
    LeadershipLost,
    LossReason,
    SessionSpec,
    leader,
)
from consul_coord.recipes.election.notes import term_key
from tests.support.sites import PATIENCE, eventually

if TYPE_CHECKING:
    from consul_coord import Client, Leadership
    from tests.election.conftest import MakeClient, Stand

DELAY = 0.6
LONG_DELAY = SessionSpec(ttl=10.0, lock_delay=30.0)
SHORT = 0.2
SOON = 10.0
"""Seconds, less than the long lock-delay by far."""


@pytest.fixture
def short_delay(make_client: MakeClient) -> Client:
    return make_client(session=SessionSpec(ttl=10.0, lock_delay=DELAY))


def test_a_leadership_lasts_no_longer_than_max_hold_and_the_next_one_waits_for_the_lock_delay(
    stand: Stand, short_delay: Client
) -> None:
    election = stand(client=short_delay, max_hold=SHORT)
    me = election.wait_for_leadership(timeout=PATIENCE)
    other = stand()
    assert election.wait_for_loss(timeout=PATIENCE) is LossReason.MAX_HOLD
    lost_at = time.monotonic()
    assert (me.state, me.reason, election.is_leader) == (HoldState.LOST, LossReason.MAX_HOLD, False)
    with pytest.raises(LeadershipLost, match="max_hold"):
        me.check()
    assert other.wait_for_leadership(timeout=PATIENCE).term > me.term
    assert time.monotonic() - lost_at >= DELAY - 0.05


def test_a_leader_that_does_not_beat_is_succeeded_too(stand: Stand, short_delay: Client) -> None:
    election = stand(client=short_delay)
    me = election.wait_for_leadership(timeout=PATIENCE)
    me.beat(SHORT)
    assert election.wait_for_loss(timeout=PATIENCE) is LossReason.STALLED
    lost_at = time.monotonic()
    stand().wait_for_leadership(timeout=PATIENCE)
    assert time.monotonic() - lost_at >= DELAY - 0.05


@pytest.mark.parametrize("failing", ["raises", "hangs"])
def test_a_leader_whose_health_fails_is_stalled(
    stand: Stand, short_delay: Client, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consul_coord.recipes.election.candidacy.HEALTH_PATIENCE", 0.2)
    fine, over = threading.Event(), threading.Event()
    fine.set()

    def health() -> bool:
        if fine.is_set():
            return True
        if failing == "raises":
            raise ValueError("no idea")
        return over.wait(PATIENCE)

    election = stand(client=short_delay, health=health, health_interval=0.02)
    me = election.wait_for_leadership(timeout=PATIENCE)
    fine.clear()
    assert me.lost.wait(PATIENCE)
    lost_at = time.monotonic()
    assert me.reason is LossReason.STALLED
    stand().wait_for_leadership(timeout=PATIENCE)
    assert time.monotonic() - lost_at >= DELAY - 0.05
    over.set()


@pytest.mark.slow
@pytest.mark.parametrize("end", ["over", "closed"])
def test_the_term_of_a_stuck_leader_is_told_as_long_as_it_has_the_key(
    stand: Stand, make_client: MakeClient, client: Client, key: str, end: str
) -> None:
    """Also to those who come later; the key's own index is higher, as the leader has written the key."""
    over, stuck = threading.Event(), make_client(session=LONG_DELAY)
    election = stand(client=stuck, max_hold=2 * SHORT, on_lost=lambda _: over.wait(PATIENCE))
    me = election.wait_for_leadership(timeout=PATIENCE)
    election.proclaim(b"here")
    assert me.lost.wait(PATIENCE)
    until = time.monotonic() + 0.3
    while time.monotonic() < until:  # also while the rest is cleaned up
        found = leader(client, key)
        assert found is not None
        assert (found.term, found.value) == (me.term, b"here")
    if end == "closed":
        stuck.close()
    else:
        election.stop(timeout=0.0)
    over.set()
    eventually(lambda: client.kv.get(term_key(key)).value is None)
    assert leader(client, key) is None


def test_when_on_lost_has_returned_the_work_is_over(stand: Stand, make_client: MakeClient) -> None:
    over = threading.Event()
    told: list[LossReason] = []

    def on_lost(reason: LossReason) -> None:
        assert over.wait(PATIENCE)
        told.append(reason)

    election = stand(client=make_client(session=LONG_DELAY), max_hold=SHORT, on_lost=on_lost)
    me = election.wait_for_leadership(timeout=PATIENCE)
    other = stand()
    assert me.lost.wait(PATIENCE)
    time.sleep(0.3)  # for the work of the one that was lost
    assert not other.is_leader
    over.set()
    began = time.monotonic()
    other.wait_for_leadership(timeout=PATIENCE)
    assert time.monotonic() - began < SOON
    assert told == [LossReason.MAX_HOLD]


def test_when_the_leaders_function_has_returned_the_work_is_over(
    stand: Stand, make_client: MakeClient, key: str
) -> None:
    """Its ``on_lost`` alone says nothing then."""
    at_work, over = threading.Event(), threading.Event()

    def lead(leadership: Leadership) -> None:
        at_work.set()
        assert over.wait(PATIENCE)

    client = make_client(session=LONG_DELAY)
    election = LeaderElection(client, key, max_hold=SHORT, on_lost=print)
    thread = threading.Thread(target=election.run, args=(lead,), kwargs={"until": lambda: True})
    thread.start()
    assert at_work.wait(PATIENCE)
    other = stand()
    assert election.wait_for_loss(timeout=PATIENCE) is LossReason.MAX_HOLD
    time.sleep(0.3)  # for the work of the one that was lost
    assert not other.is_leader
    over.set()
    began = time.monotonic()
    other.wait_for_leadership(timeout=PATIENCE)
    assert time.monotonic() - began < SOON
    thread.join(PATIENCE)
    eventually(lambda: not client.pending_cleanup)


def test_it_stands_again_afterwards(stand: Stand, make_client: MakeClient) -> None:
    election = stand(
        client=make_client(session=SessionSpec(ttl=10.0, lock_delay=0.2)),
        max_hold=SHORT,
        on_lost=lambda _: None,
    )
    terms = [election.wait_for_leadership(timeout=PATIENCE).term]
    for _ in range(2):
        election.wait_for_loss(timeout=PATIENCE)
        terms.append(election.wait_for_leadership(timeout=PATIENCE).term)
    assert terms == sorted(set(terms))


def test_what_is_no_time_is_refused(client: Client, key: str) -> None:
    with pytest.raises(InvalidArgument, match="max_hold"):
        LeaderElection(client, key, max_hold=0)
