"""A token that lacks a rule: the error names the rule, and nothing is left behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from consul_coord import Client, PermissionDenied, ReleaseOutcome, Semaphore, SessionSpec
from consul_coord.server import Rule
from tests.support import guarded
from tests.support.guarded import SESSIONS
from tests.support.sites import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.guarded import Guarded, Rules

PREFIX = "api/slots"
READ = Rule("key", f"{PREFIX}/", "read", prefix=True)
WRITE = Rule("key", f"{PREFIX}/", "write", prefix=True)
RECORD = f"{PREFIX}/.lock"

LACKING: dict[str, tuple[Rules, str]] = {
    "no session": ((WRITE,), "session:write"),
    "nothing": ((), "session:write"),
    "sessions to be read only": ((Rule("session", "", "read", prefix=True), WRITE), "session:write"),
    "no keys": ((SESSIONS,), f'key:write on the prefix "{PREFIX}/"'),
    "keys to be read only": ((SESSIONS, READ), f'key:write on the prefix "{PREFIX}/"'),
    "a record to be read only": (
        (SESSIONS, WRITE, Rule("key", RECORD, "read")),
        f'key:write on the prefix "{PREFIX}/"',
    ),
    "no record": ((SESSIONS, WRITE, Rule("key", RECORD, "deny")), f'key:write on the prefix "{PREFIX}/"'),
}
SETS = [*(rules for rules, _ in LACKING.values()), (SESSIONS, WRITE), (READ,)]


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


def client_with(consul: Guarded, rules: Rules) -> Client:
    return Client(address=consul.address, token=consul.tokens[rules], session=SessionSpec(name="slots"))


@pytest.mark.parametrize("lacking", LACKING)
@pytest.mark.parametrize("timeout", [0, 5])
def test_a_missing_rule_is_named_and_nothing_is_left(consul: Guarded, lacking: str, timeout: float) -> None:
    rules, needed = LACKING[lacking]
    with client_with(consul, rules) as client:
        with pytest.raises(PermissionDenied) as refused:
            Semaphore(client, PREFIX, 2).acquire(timeout=timeout)
        assert any(rule.startswith(needed) for rule in refused.value.needed)
        assert needed in str(refused.value)
        assert consul.tokens[rules] not in str(refused.value)
    assert eventually(lambda: consul.root.under(PREFIX) == [])
    assert eventually(lambda: consul.root.sessions("slots") == [])


def test_the_two_rules_suffice(consul: Guarded) -> None:
    with (
        client_with(consul, (SESSIONS, WRITE)) as client,
        Semaphore(client, PREFIX, 2).hold(timeout=5) as permit,
    ):
        assert permit.verify()
        permit.put("busy")
    assert consul.root.under(PREFIX) == [RECORD]
    assert eventually(lambda: consul.root.sessions("slots") == [])
    consul.root.delete(RECORD)


@pytest.mark.parametrize("left", ["no keys", "keys to be read only"])
def test_a_permit_whose_keys_may_not_be_written_any_more_is_given_back(consul: Guarded, left: str) -> None:
    with client_with(consul, (SESSIONS, WRITE)) as client:
        permit = Semaphore(client, f"{PREFIX}/{len(left)}", 2).acquire(timeout=5)
        client.token = consul.tokens[LACKING[left][0]]
        assert permit.release() is ReleaseOutcome.RELEASED
        assert consul.root.under(permit.key) == []


def test_who_may_only_read_sees_the_holders(consul: Guarded) -> None:
    with client_with(consul, (SESSIONS, WRITE)) as one, client_with(consul, (READ,)) as other:
        seen = Semaphore(other, PREFIX, 2)
        with Semaphore(one, PREFIX, 2, value="worker 7").hold(timeout=5) as permit:
            (holder,) = seen.holders()
            assert (holder.session, holder.value, holder.node) == (permit.session, b"worker 7", None)
        with pytest.raises(PermissionDenied):
            seen.acquire(timeout=1)
    consul.root.delete(RECORD)
