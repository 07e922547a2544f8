"""Groups whose token may not read, or not even list, the folder that they have in common."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from consul_coord import Client, Group, PermissionDenied
from consul_coord.server import AclConfig, ReferenceServer, Rule, ServerConfig, Token
from consul_coord.testing.agent import RealAgent
from tests.election.waiting import until
from tests.group.conftest import SPEC
from tests.group.seeing import Seen

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROOT, MEMBER = "00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000002"
TEAMS = "teams/red", "teams/blue", "teams/far/green"
RULES = (
    Rule("session", "", "write", prefix=True),
    *(Rule("key", f"{team}/members", "write", prefix=True) for team in TEAMS),
)


def on_the_reference_server(*, must_list: bool) -> Iterator[str]:
    tokens = {ROOT: Token(management=True), MEMBER: Token(RULES)}
    acl = AclConfig(tokens=tokens, enable_key_list_policy=must_list)
    with ReferenceServer(config=ServerConfig(session_ttl_min=0.2, acl=acl)) as server:
        yield server.address


def on_an_agent(binary: Path, *, must_list: bool) -> Iterator[str]:
    acl = {
        "enabled": True,
        "default_policy": "deny",
        "enable_key_list_policy": must_list,
        "tokens": {"master": ROOT, "agent": ROOT},
    }
    with RealAgent(binary=binary, config={"acl": acl, "session_ttl_min": "1s"}, token=ROOT) as agent:
        rules = "\n".join(
            f'{rule.resource}_prefix "{rule.name}" {{ policy = "{rule.policy}" }}' for rule in RULES
        )
        for path, body in (
            ("policy", {"Name": "member", "Rules": rules}),
            ("token", {"SecretID": MEMBER, "Policies": [{"Name": "member"}]}),
        ):
            status, said = agent.request("PUT", f"/v1/acl/{path}", json.dumps(body).encode())
            assert status == 200, said
        yield agent.address


@pytest.fixture(params=["reference", pytest.param("agent", marks=pytest.mark.agent)])
def guarded(request: pytest.FixtureRequest, must_list: bool) -> Iterator[str]:
    """Return the address of a Consul with ACLs."""
    if request.param == "reference":
        yield from on_the_reference_server(must_list=must_list)
    else:
        yield from on_an_agent(request.getfixturevalue("consul_binary"), must_list=must_list)


@pytest.mark.parametrize("must_list", [False, True])
def test_changes_are_noticed_all_the_same(guarded: str, must_list: bool) -> None:
    """The folder's names are not shown to the token; or it is refused, and its parts take turns."""
    with (
        Client(address=guarded, token=MEMBER, session=SPEC) as client,
        Client(address=guarded, token=ROOT, session=SPEC) as other,
    ):
        if must_list:
            with pytest.raises(PermissionDenied):
                client.kv.keys("teams", separator="/")
        else:
            assert client.kv.keys("teams", separator="/").value == ()
        groups = [Group(client, team, id="one") for team in TEAMS]
        for group in groups:
            group.join()
        with Seen(groups[0]) as red, Seen(groups[1]) as blue, Seen(groups[2]) as green:
            for seen, team in ((red, TEAMS[0]), (blue, TEAMS[1]), (green, TEAMS[2])):
                seen.until_present("one")
                with Group(other, team, id="other"):
                    seen.until_present("one", "other")
                seen.until_present("one")
            session = groups[0].members()[0].session
            other.session.destroy(session)
            until(lambda: all(_sessions(group) - {session} for group in groups), "all are back")
        until(lambda: all(group.joined for group in groups), "all know it")


def _sessions(group: Group) -> set[str]:
    return {member.session for member in group.members()}


@pytest.mark.parametrize(
    ("rules", "needed"),
    [
        (RULES[:1], f'key:write on the prefix "{TEAMS[0]}/members/"'),
        ((RULES[0], Rule("key", "", "read", prefix=True)), f'key:write on the prefix "{TEAMS[0]}/members/"'),
        (RULES[1:], "session:write on the agent's own node"),
    ],
    ids=["no key", "no write", "no session"],
)
def test_a_refused_join_names_the_rule_for_all_members(rules: tuple[Rule, ...], needed: str) -> None:
    """Not the rule for its own key: the next process has another id."""
    config = ServerConfig(acl=AclConfig(tokens={MEMBER: Token(rules)}))
    with (
        ReferenceServer(config=config) as server,
        Client(address=server.address, token=MEMBER) as client,
        pytest.raises(PermissionDenied) as refused,
    ):
        Group(client, TEAMS[0]).join(timeout=5)
    assert refused.value.needed == (needed,)
