"""``PermissionDenied.needed`` lists the rules to add: an operator who adds just these gets on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from consul_coord import Client, Group, Lock, MultiLock, Once, PermissionDenied, ReadWriteLock, Semaphore
from consul_coord.server import AclConfig, ReferenceServer, Rule, ServerConfig, Token

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord.server.acl import Policy

USES: dict[str, Callable[[Client], object]] = {
    "lock": lambda client: Lock(client, "k").acquire(timeout=5),
    "multilock": lambda client: MultiLock(client, ["k", "l"]).acquire(timeout=5),
    "semaphore": lambda client: Semaphore(client, "k", 2).acquire(timeout=5),
    "reader": lambda client: ReadWriteLock(client, "k").read.acquire(timeout=5),
    "writer": lambda client: ReadWriteLock(client, "k").write.acquire(timeout=5),
    "once": lambda client: Once(client, "k").run(lambda hold: hold.fence, slot="1", timeout=5),
    "member": lambda client: Group(client, "k", id="m").join(timeout=5),
}
RULE = re.compile(r'key:(?P<policy>read|write) on (?P<prefix>the prefix )?"(?P<name>[^"]*)"')
MOST_ROUNDS = 3
"""How often an operator may have to look: for the key, for one beside it, for writing after reading."""


def granted(needed: str) -> Rule:
    rule = RULE.fullmatch(needed)
    assert rule is not None, needed
    policy: Policy = "write" if rule["policy"] == "write" else "read"
    return Rule("key", rule["name"], policy, prefix=rule["prefix"] is not None)


@pytest.mark.parametrize("use", USES)
def test_the_rules_that_are_named_suffice(use: str) -> None:
    rules = [Rule("session", "", "write", prefix=True)]
    more: list[Rule] = []
    for _ in range(MOST_ROUNDS + 1):
        acl = AclConfig(tokens={"token": Token(tuple(rules))})
        with (
            ReferenceServer(config=ServerConfig(acl=acl)) as server,
            Client(server.address, token="token") as client,
        ):
            try:
                USES[use](client)
            except PermissionDenied as refused:
                more = [granted(needed) for needed in refused.needed]
            else:
                break
        assert not set(more) <= set(rules), f"it did not help to add {more}"
        rules += more
    else:
        pytest.fail(f"after {MOST_ROUNDS} rounds: {more}")
