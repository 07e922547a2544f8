"""A token that lacks a rule: the candidacy says which, goes on, and leaves nothing behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from consul_coord import (
    AcquireTimeout,
    Client,
    LeaderElection,
    PermissionDenied,
    SessionSpec,
    leader,
    observe,
)
from consul_coord.events import Failed
from consul_coord.server import Rule
from tests.lock.test_hold import Notes
from tests.support import guarded
from tests.support.guarded import SESSIONS
from tests.support.sites import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.guarded import Guarded, Rules

KEY = "service/web/leader"
OWN = Rule("key", KEY, "write")
QUEUE = Rule("key", f"{KEY}/.wait/", "write", prefix=True)
READ = Rule("key", KEY, "read")

LACKING: dict[str, tuple[Rules, str]] = {
    "no session": ((OWN, QUEUE), "session:write"),
    "sessions to be read only": ((Rule("session", "", "read", prefix=True), OWN, QUEUE), "session:write"),
    "nothing but sessions": ((SESSIONS,), f'key:read on "{KEY}"'),
    "a key to be read only": ((SESSIONS, READ, QUEUE), f'key:write on "{KEY}"'),
    "neither key nor queue to be written": ((SESSIONS, READ), f'key:write on "{KEY}"'),
}
WHOLE = (SESSIONS, OWN, QUEUE)
NO_QUEUE = (SESSIONS, OWN)
SETS = [*(rules for rules, _ in LACKING.values()), WHOLE, NO_QUEUE, (READ,), ()]


@pytest.fixture(scope="module")
def reference() -> Iterator[Guarded]:
    with guarded.reference(SETS) as consul:
        yield consul


@pytest.fixture(scope="module")
def agent(consul_binary: Path) -> Iterator[Guarded]:
    with guarded.agent(consul_binary, SETS) as consul:
        yield consul


@pytest.fixture(params=["reference", "agent"])
def consul(request: pytest.FixtureRequest) -> Guarded:
    found: Guarded = request.getfixturevalue(request.param)
    return found


def client_with(consul: Guarded, rules: Rules, *, observer: Notes | None = None) -> Client:
    session = SessionSpec(name="election", lock_delay=0, allow_unbounded=True)
    return Client(address=consul.address, token=consul.tokens[rules], session=session, observer=observer)


@pytest.mark.parametrize("lacking", LACKING)
def test_a_missing_rule_is_named_and_nothing_is_left(consul: Guarded, lacking: str) -> None:
    rules, needed = LACKING[lacking]
    notes = Notes()
    with client_with(consul, rules, observer=notes) as client:
        with LeaderElection(client, KEY, retry_wait=(0.05, 0.1)) as election:
            eventually(lambda: election.problem)
            with pytest.raises(AcquireTimeout):
                election.wait_for_leadership(timeout=0.3)
            assert isinstance(election.problem, PermissionDenied)
            assert needed in str(election.problem)
            assert election.problem.needed
        assert not election.is_leader
    (failed,) = notes.of(Failed)  # the same problem is told once, however often it comes
    assert needed in failed.error
    assert consul.tokens[rules] not in failed.error
    assert eventually(lambda: consul.root.under(KEY) == [])
    assert eventually(lambda: consul.root.sessions("election") == [])


@pytest.mark.parametrize("rules", [WHOLE, NO_QUEUE], ids=["with a queue", "without"])
def test_candidates_lead_in_turn(consul: Guarded, rules: Rules) -> None:
    """Without the queue there is no order, and still one leader at a time."""
    with client_with(consul, rules) as one, client_with(consul, rules) as two:
        first, second = (LeaderElection(each, KEY, retry_wait=(1, 2)) for each in (one, two))
        with first:
            term = first.wait_for_leadership(timeout=10).term
            with second:
                assert not second.is_leader
                first.resign(pause=30)
                assert second.wait_for_leadership(timeout=10).term > term
                assert not first.is_leader
    assert eventually(lambda: consul.root.holder(KEY) is None)
    consul.root.delete(KEY)


def test_followers_need_to_read_the_key(consul: Guarded) -> None:
    with client_with(consul, WHOLE) as client, LeaderElection(client, KEY, value="a") as election:
        election.wait_for_leadership(timeout=10)
        with client_with(consul, (READ,)) as follower:
            now = leader(follower, KEY)
            assert now is not None
            assert (now.text, now.node) == ("a", None)
        with client_with(consul, ()) as stranger:
            for ask in (lambda: leader(stranger, KEY), lambda: next(iter(observe(stranger, KEY)))):
                with pytest.raises(PermissionDenied, match="key:read"):
                    ask()
    consul.root.delete(KEY)
