"""The page on ACLs: with its rules each recipe works, and each of them is needed; on both kinds of Consul."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING

import pytest

from consul_coord import (
    AcquireTimeout,
    Client,
    Group,
    LeaderElection,
    Lock,
    MultiLock,
    Once,
    Partitioner,
    PermissionDenied,
    ReadWriteLock,
    Semaphore,
    TxnFailed,
    TxnOp,
    leader,
)
from tests.integrations import policies
from tests.integrations.programs import PATIENCE
from tests.support.sites import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.integrations.policies import Guarded

SLOTS = itertools.count(2)
IN_VAIN = 2.0
"""Seconds that are waited for what is held."""


@pytest.fixture(scope="module")
def reference() -> Iterator[Guarded]:
    yield from policies.on_the_reference_server()


@pytest.fixture(scope="module")
def agent(consul_binary: Path) -> Iterator[Guarded]:
    yield from policies.on_a_real_agent(consul_binary)


@pytest.fixture(params=["reference server", "real agent"])
def consul(request: pytest.FixtureRequest) -> Guarded:
    name = {"reference server": "reference", "real agent": "agent"}[request.param]
    found: Guarded = request.getfixturevalue(name)
    return found


# -- what each recipe does with a token: it returns what only the whole policy gives


def a_lock(client: Client, other: Client, root: Client) -> object:
    with Lock(client, "jobs/nightly").hold(timeout=PATIENCE) as hold:
        assert hold.verify()
        with pytest.raises(AcquireTimeout) as waited:
            Lock(other, "jobs/nightly").acquire(timeout=IN_VAIN)
    return waited.value.blocker.position == 1


def an_election(client: Client, other: Client, root: Client) -> object:
    with LeaderElection(client, "service/web/leader", value="a") as election:
        try:
            election.wait_for_leadership(timeout=IN_VAIN)
        except AcquireTimeout:
            assert isinstance(election.problem, PermissionDenied)
            raise election.problem from None
        with contextlib.suppress(PermissionDenied):  # for the note beside the queue; the value is written
            election.proclaim("b")
        now = leader(root, "service/web/leader")
        assert now is not None
        assert now.text == "b"
        return now.term == election.term


def following(client: Client, other: Client, root: Client) -> object:
    with LeaderElection(root, "service/web/leader", value="a") as election:
        election.wait_for_leadership(timeout=PATIENCE)
        election.proclaim("b")
        now = leader(client, "service/web/leader")
        assert now is not None
        return now.node == "node1" and now.term == election.term


def a_semaphore(client: Client, other: Client, root: Client) -> object:
    with Semaphore(client, "api/slots", 3).hold(timeout=PATIENCE) as permit:
        return permit.verify()


def once(client: Client, other: Client, root: Client) -> object:
    job = Once(client, "jobs/report")
    if job.run(lambda _: None, slot=str(next(SLOTS)), timeout=PATIENCE).ran:
        assert not Once(other, "jobs/report").run(lambda _: None, slot="1").ran
    with Lock(root, "jobs/report").hold(timeout=PATIENCE), pytest.raises(AcquireTimeout) as waited:
        job.run(lambda _: None, slot=str(next(SLOTS)), timeout=IN_VAIN)
    return waited.value.blocker.position == 1


def several(client: Client, other: Client, root: Client) -> object:
    with MultiLock(client, ["accounts/17", "accounts/4"]).hold(timeout=PATIENCE) as hold:
        return hold.verify()


def read_write(client: Client, other: Client, root: Client) -> object:
    lock = ReadWriteLock(client, "config/main")
    with lock.read.hold(timeout=PATIENCE):
        pass
    with lock.write.hold(timeout=PATIENCE) as hold:
        return hold.verify()


def a_group(client: Client, other: Client, root: Client) -> object:
    with Group(client, "workers", id="a") as group:
        group.update("b")
        return [member.value for member in group.members()] == [b"b"]


def partitions(client: Client, other: Client, root: Client) -> object:
    group, owned = Group(client, "workers", id="a"), set[str]()
    with group, Partitioner(group, 3, on_acquired=lambda part, _: owned.add(part)):
        with contextlib.suppress(AssertionError):
            return eventually(lambda: len(owned) == 3, within=2 * IN_VAIN)
        return False


def guarded(client: Client, other: Client, root: Client) -> object:
    with Lock(client, "jobs/nightly").hold(timeout=PATIENCE) as hold:
        client.txn(*hold.guard(), TxnOp.set("jobs/last-run", "now"))
    return True


USES: dict[str, Callable[[Client, Client, Client], object]] = {
    "A lock": a_lock,
    "An election": an_election,
    "Following an election": following,
    "A semaphore": a_semaphore,
    "A job that runs once": once,
    "Several locks as one": several,
    "A read-write lock": read_write,
    "A group": a_group,
    "Partitions": partitions,
    "A guarded write": guarded,
}
POLICIES = policies.policies() | {"A guarded write": policies.sets()[-1]}
NOT_FOR_THIS = {("A guarded write", 'key_prefix "jobs/nightly/.wait/" { policy = "write" }')}
"""The queue, which nobody waits in here."""
CASES = [
    (heading, line)
    for heading, rules in POLICIES.items()
    for line in rules
    if (heading, line) not in NOT_FOR_THIS
]


def use(consul: Guarded, heading: str, rules: tuple[str, ...]) -> object:
    token = consul.token(rules)
    with (
        Client(address=consul.address, token=policies.ROOT) as root,
        Client(address=consul.address, token=token) as client,
        Client(address=consul.address, token=token) as other,
    ):
        return USES[heading](client, other, root)


def test_every_policy_of_the_page_is_tried() -> None:
    assert policies.policies().keys() == USES.keys()


@pytest.mark.parametrize("heading", USES)
def test_the_rules_suffice(consul: Guarded, heading: str) -> None:
    assert use(consul, heading, POLICIES[heading])


@pytest.mark.parametrize(("heading", "missing"), CASES)
def test_each_rule_is_needed(consul: Guarded, heading: str, missing: str) -> None:
    rules = tuple(line for line in POLICIES[heading] if line != missing)
    assert not succeeds(consul, heading, rules)


def succeeds(consul: Guarded, heading: str, rules: tuple[str, ...]) -> bool:
    """Tell whether a recipe does all that it should; refused otherwise than by the ACLs, it raises."""
    try:
        return bool(use(consul, heading, rules))
    except PermissionDenied:
        return False
    except TxnFailed as refused:
        if {failure.kind for failure in refused.failures} != {"denied"}:
            raise
        return False
