"""``break``: whom it takes the lock from, and when it does not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from consul_coord import Client, HoldState, InvalidKey, Lock, LossReason, Semaphore
from tests.cli.processes import PATIENCE

if TYPE_CHECKING:
    from tests.cli.conftest import Call


def test_a_holder_that_is_named_loses_the_key_and_keeps_its_session(
    call: Call, key: str, anywhere: str
) -> None:
    with Client(address=anywhere) as client:
        hold = Lock(client, key, value="me").acquire()
        outcome = call("break", key, "--session", hold.session, address=anywhere)
        assert outcome.code == 0
        assert "me" in outcome.out
        assert hold.session in outcome.out
        assert Lock(client, key).holder() is None
        assert client.session.info(hold.session).value is not None
        assert hold.lost.wait(PATIENCE)
        assert hold.reason is LossReason.RELEASED_BY_OTHER


def test_destroy_ends_the_session(call: Call, key: str, client: Client) -> None:
    hold = Lock(client, key).acquire()
    assert call("break", key, "--yes", "--how", "destroy").code == 0
    assert client.session.info(hold.session).value is None
    assert hold.lost.wait(PATIENCE)


def test_while_the_lock_delay_lasts_there_is_nobody_to_take_it_from(
    call: Call, key: str, client: Client
) -> None:
    hold = Lock(client, key).acquire()
    client.session.destroy(hold.session)
    outcome = call("break", key, "--yes")
    assert (outcome.code, outcome.out) == (1, "")
    assert f"nobody holds {key}: its lock-delay is in force" in outcome.err


def test_another_session_than_the_named_one_keeps_it(call: Call, key: str, client: Client) -> None:
    with Lock(client, key).hold() as hold:
        outcome = call("break", key, "--session", "00000000-0000-0000-0000-000000000000")
        assert outcome.code == 1
        assert hold.verify()


def test_nobody_to_take_it_from_is_1(call: Call, key: str) -> None:
    outcome = call("break", key, "--yes")
    assert (outcome.code, outcome.out) == (1, "")
    assert f"nobody holds {key}" in outcome.err


@pytest.mark.parametrize(("typed", "code"), [("y\n", 0), ("n\n", 1), ("\n", 1), ("", 130)])
def test_it_asks_at_a_terminal_after_showing_the_holder(
    call: Call, key: str, client: Client, typed: str, code: int
) -> None:
    hold = Lock(client, key).acquire()
    outcome = call("break", key, typed=typed)
    assert outcome.code == code
    assert hold.session in outcome.out
    assert (Lock(client, key).holder() is None) is (code == 0)
    hold.release()


def test_it_does_not_guess_where_it_cannot_ask(call: Call, key: str, client: Client) -> None:
    with Lock(client, key).hold() as hold:
        outcome = call("break", key)
        assert outcome.code == 2
        assert "--session" in outcome.err
        assert hold.verify()


def test_json(call: Call, key: str, client: Client) -> None:
    hold = Lock(client, key, value="me").acquire()
    outcome = call("break", key, "--yes", "--json")
    holder = json.loads(outcome.out)
    assert (holder["key"], holder["session"], holder["value"]) == (key, hold.session, "me")
    assert json.loads(outcome.err)["event"] == "broken"
    hold.release()


def test_a_slot_is_freed_by_its_holders_own_key(call: Call, key: str, client: Client) -> None:
    semaphore = Semaphore(client, key, 1)
    permit = semaphore.acquire()
    assert call("break", permit.key, "--session", permit.session).code == 0
    assert permit.lost.wait(PATIENCE)
    assert permit.state is HoldState.LOST
    with semaphore.hold(timeout=PATIENCE):
        pass


@pytest.mark.parametrize("name", ["old ", "100%20"])
def test_a_key_that_nothing_new_may_be_called_can_still_be_broken(
    call: Call, key: str, client: Client, name: str
) -> None:
    old = f"{key}/{name}"
    with pytest.raises(InvalidKey):
        Lock(client, old)
    session = client.session.create()
    assert client.kv.acquire(old, session)
    assert call("break", old, "--session", session).code == 0
    found = client.kv.get(old).value
    assert found is not None
    assert found.session is None
