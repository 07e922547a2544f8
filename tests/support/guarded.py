"""Consul in both kinds, with ACLs that deny what no rule permits, and tokens with the rules asked for."""

from __future__ import annotations

import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from consul_coord.server import AclConfig, ReferenceServer, Rule, ServerConfig, Token
from consul_coord.testing.agent import RealAgent
from tests.support.sites import Operator

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable
    from pathlib import Path

ROOT: Final = "00000000-0000-4000-8000-00000000000a"

Rules = tuple[Rule, ...]
SESSIONS: Final = Rule("session", "", "write", prefix=True)


@dataclass(frozen=True, slots=True)
class Guarded:
    """A Consul with ACLs, and a token for each set of rules."""

    address: str
    tokens: dict[Rules, str]

    @property
    def root(self) -> Operator:
        """Somebody who may do everything."""
        return Operator(self.address, ROOT)


@contextmanager
def reference(wanted: Iterable[Rules]) -> Generator[Guarded]:
    """Serve with a token for each set of rules."""
    tokens = {rules: str(uuid.uuid4()) for rules in wanted}
    known = {secret: Token(rules) for rules, secret in tokens.items()} | {ROOT: Token(management=True)}
    with ReferenceServer(config=ServerConfig(acl=AclConfig(tokens=known))) as server:
        yield Guarded(server.address, tokens)


@contextmanager
def agent(binary: Path, wanted: Iterable[Rules]) -> Generator[Guarded]:
    """Run a real agent, and make a token for each set of rules."""
    acl = {"enabled": True, "default_policy": "deny", "tokens": {"master": ROOT, "agent": ROOT}}
    with RealAgent(binary=binary, config={"acl": acl}, token=ROOT) as running:
        root = Operator(running.address, ROOT)
        yield Guarded(running.address, {rules: _token(root, rules) for rules in wanted})


def change(consul: Guarded, wanted: Rules, rules: Rules) -> None:
    """Give the token made for one set of rules another one instead; on a real agent."""
    token = consul.root.done("GET", f"/v1/acl/token/self?token={consul.tokens[wanted]}")
    (policy,) = token["Policies"]
    new = {"ID": policy["ID"], "Name": policy["Name"], "Rules": "\n".join(map(_hcl, rules))}
    consul.root.done("PUT", f"/v1/acl/policy/{policy['ID']}", new)


def _token(root: Operator, rules: Rules) -> str:
    policy = {"Name": uuid.uuid4().hex, "Rules": "\n".join(map(_hcl, rules))}
    root.done("PUT", "/v1/acl/policy", policy)
    made = root.done("PUT", "/v1/acl/token", {"Policies": [{"Name": policy["Name"]}]})
    return str(made["SecretID"])


def _hcl(rule: Rule) -> str:
    kind = f"{rule.resource}_prefix" if rule.prefix else rule.resource
    return f'{kind} "{rule.name}" {{ policy = "{rule.policy}" }}'
