"""Each policy of docs/howto/acl.md grants what its section is about, on the node that it names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from consul_coord import (
    Client,
    Group,
    LeaderElection,
    Lock,
    MultiLock,
    Once,
    Partitioner,
    ReadWriteLock,
    Semaphore,
    TxnOp,
    leader,
)
from consul_coord.server import ReferenceServer, ServerConfig
from consul_coord.server.acl_json import acl_of
from tests.support.sites import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE: Final = (Path(__file__).parents[2] / "docs/howto/acl.md").read_text("utf-8")
RULE: Final = re.compile(r'(\w+) "([^"]*)" \{ policy = "(\w+)" \}')
SECTIONS: Final = {
    section.partition("\n")[0]: RULE.findall("".join(re.findall(r"```hcl\n(.*?)```", section, re.DOTALL)))
    for section in PAGE.split("\n## ")[1:]
}


def _lock(client: Client) -> None:
    lock = Lock(client, "jobs/nightly", fair=True)
    lock.run(lambda hold: hold.put(b"v"), timeout=5)
    assert lock.contenders() == ()


def _election(client: Client) -> None:
    with LeaderElection(client, "service/web/leader") as election:
        election.wait_for_leadership(timeout=5)
        election.proclaim(b"v")


def _following(client: Client) -> None:
    assert leader(client, "service/web/leader") is None


def _semaphore(client: Client) -> None:
    Semaphore(client, "api/slots", 3).run(lambda permit: permit.put(b"v"), timeout=5)


def _once(client: Client) -> None:
    assert Once(client, "jobs/report").run(lambda run: run.fence, slot="1", timeout=5).ran


def _several(client: Client) -> None:
    MultiLock(client, ["accounts/17", "accounts/4"]).run(lambda hold: hold.check(), timeout=5)


def _read_write(client: Client) -> None:
    lock = ReadWriteLock(client, "config/main")
    for side in (lock.read, lock.write):
        side.run(lambda hold: hold.check(), timeout=5)


def _group(client: Client) -> None:
    with Group(client, "workers", id="a") as group:
        group.update(b"v")
        assert [member.value for member in group.members()] == [b"v"]


def _partitions(client: Client) -> None:
    group, owned = Group(client, "workers", id="a"), set[str]()
    with group, Partitioner(group, 3, on_acquired=lambda part, _: owned.add(part)):
        eventually(lambda: len(owned) == 3)


def _guarded(client: Client) -> None:
    client.txn(TxnOp.set("jobs/last-run", b"v"))


USES: Final[dict[str, Callable[[Client], None]]] = {
    "A lock": _lock,
    "An election": _election,
    "Following an election": _following,
    "A semaphore": _semaphore,
    "A job that runs once": _once,
    "Several locks as one": _several,
    "A read-write lock": _read_write,
    "A group": _group,
    "Partitions": _partitions,
    "A guarded write": _guarded,
}


def test_each_section_with_a_policy_is_tried() -> None:
    assert set(USES) == {name for name, rules in SECTIONS.items() if rules}


@pytest.mark.parametrize("section", USES)
def test_a_token_with_the_policy_of_a_section_may_do_it(section: str) -> None:
    rules: dict[str, dict[str, dict[str, str]]] = {}
    for kind, name, policy in SECTIONS[section]:
        rules.setdefault(kind, {})[name] = {"policy": policy}
    config = ServerConfig(acl=acl_of({"tokens": {"a-token-of-this-test": rules}}))
    with (
        ReferenceServer(config=config, node="node1") as server,
        Client(server.address, token="a-token-of-this-test") as client,
    ):
        USES[section](client)
