"""The rules of a policy: read from its text in HCL or JSON, judged as Consul judges them, and written.

Rules
- A block or a field that Consul does not know is left out, as Consul leaves it out.
- Of several rules for the same thing, in one policy or in several, ``deny`` wins, and otherwise the one that
  permits most.
- A refusal has Consul's words, except for texts that are malformed in a rare way.

Source: https://developer.hashicorp.com/consul/docs/security/acl/acl-rules
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, cast, get_args

from consul_coord.server import hcl
from consul_coord.server.acl import STRENGTH, UNNAMED, Policy, Resource, Rule, Token
from consul_coord.server.failures import StateError
from consul_coord.server.gotext import quote

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_JUDGED: Final[tuple[Resource, ...]] = (
    "acl",
    "agent",
    "key",
    "node",
    "service",
    "session",
    "event",
    "keyring",
    "query",
    "operator",
)
"""The resources, in the order in which Consul judges their rules."""

KINDS: Final[dict[str, tuple[Resource, bool]]] = {
    f"{resource}{suffix}": (resource, bool(suffix))
    for resource in _JUDGED
    for suffix in ("", "_prefix")
    if not suffix or resource not in UNNAMED
}
"""The blocks that there are: what each is about, and whether it is for all names that begin with its own."""

_STRUCTS: Final[dict[Resource, tuple[str, str, tuple[str, ...]]]] = {
    "agent": ("AgentRule", "Node", ()),
    "event": ("EventRule", "Event", ()),
    "key": ("KeyRule", "Prefix", ("EnterpriseRule",)),
    "node": ("NodeRule", "Name", ("EnterpriseRule",)),
    "query": ("PreparedQueryRule", "Prefix", ()),
    "service": ("ServiceRule", "Name", ("Intentions", "EnterpriseRule")),
    "session": ("SessionRule", "Node", ()),
}
"""How Consul shows a rule that it refuses: its type, the field of its name, and what follows the policy."""

_FIELDS: Final = {"policy": "Policy", "intentions": "Intentions"}
_POLICIES: Final[dict[str, Policy]] = {policy: policy for policy in get_args(Policy)}
_OF_INTENTIONS: Final = ("", "deny", "read", "write")


def parse(text: str) -> list[Rule]:
    """Return the rules of a policy's text; raise ``StateError`` for what Consul refuses."""
    try:
        blocks = list(_blocks(hcl.read(text)))
    except hcl.MalformedError as error:
        message = f"Failed to parse ACL rules: {error}"
        raise StateError(message) from None
    return [rule for kind in KINDS for block in blocks if block.kind == kind for rule in _judged(block)]


@lru_cache(maxsize=256)
def rights(texts: tuple[str, ...]) -> Token:
    """Return what policies with these texts permit together."""
    strongest: dict[tuple[Resource, str, bool], Rule] = {}
    for rule in (rule for text in texts for rule in parse(text)):
        thing = (rule.resource, rule.name, rule.prefix)
        known = strongest.get(thing)
        if known is None or _outweighs(rule, known):
            strongest[thing] = rule
    return Token(tuple(strongest.values()))


def write(rules: Iterable[Rule]) -> str:
    """Return rules as the text of a policy."""
    shown: dict[str, object] = {}
    for rule in rules:
        if rule.resource in UNNAMED:
            shown[rule.resource] = rule.policy
        else:
            kind = f"{rule.resource}_prefix" if rule.prefix else rule.resource
            cast("dict[str, object]", shown.setdefault(kind, {}))[rule.name] = {"policy": rule.policy}
    return json.dumps(shown, ensure_ascii=False) if shown else ""


def _outweighs(rule: Rule, known: Rule) -> bool:
    if "deny" in (rule.policy, known.policy):
        return rule.policy == "deny"
    return STRENGTH[rule.policy] > STRENGTH[known.policy]


@dataclass(frozen=True, slots=True)
class _Block:
    """One rule as it is written."""

    kind: str
    name: str
    policy: str
    intentions: str = ""


def _blocks(items: Iterable[hcl.Item]) -> Iterator[_Block]:
    for item in items:
        kind = item.keys[0].lower()
        if kind in UNNAMED:
            yield _Block(kind, "", item.text(f"root.{kind}"))
        elif kind in KINDS:
            named = (item.without(1),) if item.keys[1:] else item.members()
            yield from (_block(kind, number, each) for number, each in enumerate(named))


def _block(kind: str, number: int, item: hcl.Item) -> _Block:
    members = () if item.keys[1:] else item.members()
    fields = {
        field: member.text(f"root.{kind}[{number}].{_FIELDS[field]}")
        for member in members
        if (field := member.keys[0].lower()) in _FIELDS
    }
    intentions = fields.get("intentions", "") if KINDS[kind][0] == "service" else ""
    return _Block(kind, item.keys[0], fields.get("policy", ""), intentions)


def _judged(block: _Block) -> Iterator[Rule]:
    resource, prefix = KINDS[block.kind]
    if resource in UNNAMED and not block.policy:
        return
    policy = _POLICIES.get(block.policy.lower())
    if policy is None or (policy == "list" and resource != "key"):
        shown = quote(block.policy) if resource in UNNAMED else _shown(resource, block)
        message = f"Invalid {block.kind} policy: {shown}"
        raise StateError(message)
    if block.intentions.lower() not in _OF_INTENTIONS:
        message = f"Invalid {block.kind} intentions policy: {_shown(resource, block)}"
        raise StateError(message)
    yield Rule(resource, block.name, policy, prefix)


def _shown(resource: Resource, block: _Block) -> str:
    struct, field, more = _STRUCTS[resource]
    values = {"Intentions": quote(block.intentions), "EnterpriseRule": "acl.EnterpriseRule{}"}
    parts = [
        f"{field}:{quote(block.name)}",
        f"Policy:{quote(block.policy)}",
        *(f"{name}:{values[name]}" for name in more),
    ]
    return f"&acl.{struct}{{{', '.join(parts)}}}"
