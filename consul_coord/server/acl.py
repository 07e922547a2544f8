"""Permissions: what the rules of a token allow, and the ACLs that a server begins with.

Rules
- A rule for an exact name beats one for a prefix, a longer prefix beats a shorter one; without a rule the
  default policy decides: ``allow`` or ``deny``. ``write`` includes ``list``, and that ``read``.
- Keys are listed to whoever may read them; where the key list policy is enabled, only a token that may list
  the prefix lists it.
- Writing a whole prefix needs ``write`` there and no stricter rule beneath.
- To read and change ACLs is allowed by a rule only, never by the default policy.
- A request without a token bears the agent's default token, and without one has the rights of the anonymous
  token; an unknown token is refused everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from consul_coord.server.failures import LeadersRefusal, Refusal
from consul_coord.server.gotext import quote

if TYPE_CHECKING:
    from collections.abc import Mapping

    from consul_coord.server.wire import Headers

Resource = Literal[
    "acl", "agent", "event", "key", "keyring", "node", "operator", "query", "service", "session"
]
Policy = Literal["deny", "read", "list", "write"]
DefaultPolicy = Literal["allow", "deny"]

ANONYMOUS: Final = "00000000-0000-0000-0000-000000000002"
"""The accessor of the anonymous token."""

DENIED: Final = "Permission denied"
UNKNOWN: Final = "ACL not found"
UNNAMED: Final = frozenset[Resource]({"acl", "keyring", "operator"})
"""The resources of which there is one."""

STRENGTH: Final = {"deny": 0, "read": 1, "list": 2, "write": 3, "allow": 3}


@dataclass(frozen=True, slots=True)
class Rule:
    """The permissions of a token for a name, or for each name that begins with it."""

    resource: Resource
    name: str
    policy: Policy
    prefix: bool = False


@dataclass(frozen=True, slots=True)
class Token:
    """A token's rules; ``management`` permits everything."""

    rules: tuple[Rule, ...] = ()
    management: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AclConfig:
    """ACLs that a server begins with; clients may read and change them under ``/v1/acl/``.

    Tokens by their secret, the rights of requests without one, and what no rule mentions. ``default_token``
    is the secret that the agent uses for requests that bear none, which then are not anonymous.
    """

    tokens: Mapping[str, Token] = field(default_factory=dict[str, Token], repr=False)
    anonymous: Token = Token()
    default_policy: DefaultPolicy = "deny"
    default_token: str = field(default="", repr=False)
    enable_key_list_policy: bool = False


class Authorizer:
    """Answers whether one token may do something."""

    __slots__ = ("_default", "_exact", "_lacks", "_prefixes", "accessor", "token")

    def __init__(
        self, token: Token, default: DefaultPolicy, *, accessor: str = ANONYMOUS, lacks: bool = False
    ) -> None:
        self.token = token
        self.accessor = accessor
        self._lacks = lacks
        self._default = STRENGTH["allow" if token.management else default]
        rules = () if token.management else token.rules
        self._exact = {(rule.resource, rule.name): STRENGTH[rule.policy] for rule in rules if not rule.prefix}
        self._prefixes = sorted((rule for rule in rules if rule.prefix), key=lambda rule: -len(rule.name))

    def may(self, resource: Resource, name: str, policy: Policy) -> bool:
        """Tell whether the token may read or write one thing."""
        return self._strength(resource, name) >= STRENGTH[policy]

    def may_all(self, resource: Resource, prefix: str, policy: Policy) -> bool:
        """Tell whether the token may read or write everything under a prefix."""
        wanted = STRENGTH[policy]
        beneath = [
            *(
                strength
                for (kind, name), strength in self._exact.items()
                if kind == resource and name.startswith(prefix)
            ),
            *(
                STRENGTH[r.policy]
                for r in self._prefixes
                if r.resource == resource and r.name.startswith(prefix)
            ),
        ]
        return min((self._by_prefix(resource, prefix), *beneath)) >= wanted

    def require(self, resource: Resource, name: str, policy: Policy, headers: Headers = ()) -> None:
        """Refuse with 403 unless the token may."""
        if not self.may(resource, name, policy):
            raise LeadersRefusal(403, self._denied(resource, name, policy), headers)

    def require_on_agent(self, resource: Resource, name: str, policy: Policy) -> None:
        """Refuse with 403 unless the token may, in the words of an agent, which say what is missing."""
        if not self.may(resource, name, policy):
            missing = f"{DENIED}: Missing {resource}:{policy} on {name}"
            raise Refusal(403, self._denied(resource, name, policy) if self._lacks else missing)

    def _denied(self, resource: Resource, name: str, policy: Policy) -> str:
        if not self._lacks:
            return DENIED
        who = f"token with AccessorID '{self.accessor}'"
        return f"{DENIED}: {who} lacks permission '{resource}:{policy}' on {quote(name)}"

    def _strength(self, resource: Resource, name: str) -> int:
        exact = self._exact.get((resource, name))
        return self._by_prefix(resource, name) if exact is None else exact

    def _by_prefix(self, resource: Resource, name: str) -> int:
        fitting = (r for r in self._prefixes if r.resource == resource and name.startswith(r.name))
        rule = next(fitting, None)
        if rule is not None:
            return STRENGTH[rule.policy]
        return self._default if resource != "acl" or self.token.management else STRENGTH["deny"]


EVERYTHING: Final = Authorizer(Token(management=True), "allow")
