"""Consul with ACLs in both kinds, and the rules of the page on ACLs given to tokens of it."""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

from consul_coord.server import AclConfig, ReferenceServer, Rule, ServerConfig, Token
from consul_coord.testing.agent import RealAgent
from tests.integrations import pages

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROOT = "00000000-0000-4000-8000-000000000001"
_LINE = re.compile(r'(?P<resource>\w+) "(?P<name>[^"]*)" \{ policy = "(?P<policy>\w+)" \}')


def policies() -> dict[str, tuple[str, ...]]:
    """Return the page's policies: each heading's rules, one a line."""
    found = {heading: pages.blocks_in(text, "hcl") for heading, text in pages.sections("acl").items()}
    return {heading: tuple(blocks[0].splitlines()) for heading, blocks in found.items() if blocks}


def rule(line: str) -> Rule:
    """Read one line of a policy as the reference server's rule."""
    match = _LINE.fullmatch(line)
    assert match is not None, line
    resource = match["resource"].removesuffix("_prefix")
    return Rule(
        cast('Literal["key", "session"]', resource),
        match["name"],
        cast('Literal["read", "write"]', match["policy"]),
        prefix=match["resource"].endswith("_prefix"),
    )


@dataclass(frozen=True)
class Guarded:
    """A Consul with ACLs: its address, and how it gets a token with some rules."""

    address: str
    agent: RealAgent | None
    secrets: dict[tuple[str, ...], str]

    def token(self, rules: tuple[str, ...]) -> str:
        """Return the secret of a token that has these rules and no others."""
        return self.secrets[rules] if self.agent is None else self._created(self.agent, rules)

    @staticmethod
    def _created(agent: RealAgent, rules: tuple[str, ...]) -> str:
        policy = {"Name": uuid.uuid4().hex, "Rules": "\n".join(rules)}
        status, body = agent.request("PUT", "/v1/acl/policy", json.dumps(policy).encode())
        assert status == 200, body
        token = {"Policies": [{"Name": policy["Name"]}]}
        status, body = agent.request("PUT", "/v1/acl/token", json.dumps(token).encode())
        assert status == 200, body
        secret: str = json.loads(body)["SecretID"]
        return secret


def on_the_reference_server() -> Iterator[Guarded]:
    """Serve with a token for each of the page's policies, and for each that lacks one of its rules."""
    wanted = {
        tuple(line for line in rules if line != missing) for rules in sets() for missing in (None, *rules)
    }
    secrets = {rules: str(uuid.uuid4()) for rules in wanted}
    tokens = {secret: Token(tuple(map(rule, rules))) for rules, secret in secrets.items()}
    config = ServerConfig(acl=AclConfig(tokens=tokens | {ROOT: Token(management=True)}))
    with ReferenceServer(config=config) as server:
        yield Guarded(server.address, None, secrets)


def sets() -> list[tuple[str, ...]]:
    """Return the sets of rules that tokens are wanted for."""
    by_heading = policies()
    guarded = by_heading["A lock"] + by_heading["A guarded write"]
    return [*by_heading.values(), guarded]


def on_a_real_agent(binary: Path) -> Iterator[Guarded]:
    """Run an agent whose ACLs deny what no rule permits."""
    acl = {"enabled": True, "default_policy": "deny", "tokens": {"master": ROOT, "agent": ROOT}}
    with RealAgent(binary=binary, config={"acl": acl}, token=ROOT) as agent:
        yield Guarded(agent.address, agent, {})
