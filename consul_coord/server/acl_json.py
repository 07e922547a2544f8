"""ACLs of the reference server, read from JSON, as ``consul-coord serve --config`` has them.

Rules
- A token's rules have the form of Consul's own policies: ``{"key_prefix": {"jobs/": {"policy": "write"}}}``.
  The word ``"management"`` in their place permits everything.
- Whatever is not understood is an error that names the place, never a rule that is left out. The token itself
  is not named: it is a secret.

Source: https://developer.hashicorp.com/consul/docs/security/acl/acl-rules
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast, get_args

from consul_coord.errors import ConfigError
from consul_coord.server.acl import AclConfig, DefaultPolicy, Policy, Resource, Rule, Token

if TYPE_CHECKING:
    from collections.abc import Collection

_RESOURCES: Final[tuple[Resource, ...]] = get_args(Resource)
_POLICIES: Final[tuple[Policy, ...]] = get_args(Policy)
_DEFAULTS: Final[tuple[DefaultPolicy, ...]] = get_args(DefaultPolicy)
_FIELDS: Final = frozenset(
    {"anonymous", "default_policy", "default_token", "enable_key_list_policy", "tokens"}
)
_KINDS: Final[dict[str, tuple[Resource, bool]]] = {
    f"{resource}{suffix}": (resource, bool(suffix)) for resource in _RESOURCES for suffix in ("", "_prefix")
}


def acl_of(shown: object) -> AclConfig:
    """Return the ACLs that a JSON value describes. Raises ConfigError."""
    fields = _object("acl", shown, _FIELDS)
    tokens = _object("acl.tokens", fields.get("tokens", {}))
    return AclConfig(
        tokens={
            secret: _token(f"acl.tokens (number {number})", rules)
            for number, (secret, rules) in enumerate(tokens.items(), 1)
        },
        anonymous=_token("acl.anonymous", fields.get("anonymous", {})),
        default_policy=_default_policy(fields.get("default_policy", "deny")),
        default_token=_text("acl.default_token", fields.get("default_token", "")),
        enable_key_list_policy=fields.get("enable_key_list_policy", False) is True,
    )


def _token(where: str, shown: object) -> Token:
    if shown == "management":
        return Token(management=True)
    if isinstance(shown, str):
        raise ConfigError(f'{where} must be "management" or a JSON object')
    return Token(
        tuple(
            Rule(
                resource,
                name,
                _policy(f"{where}.{kind}.{name}", _object(where, given, {"policy"}).get("policy")),
                prefix,
            )
            for kind, names in _object(where, shown, _KINDS).items()
            for resource, prefix in (_KINDS[kind],)
            for name, given in _named(f"{where}.{kind}", resource, names).items()
        )
    )


def _named(where: str, resource: Resource, shown: object) -> dict[str, Any]:
    """Return the rules by name. The rule for operators has none: ``{"operator": "read"}``."""
    return {"": {"policy": shown}} if resource == "operator" else _object(where, shown)


def _default_policy(shown: object) -> DefaultPolicy:
    for policy in _DEFAULTS:
        if shown == policy:
            return policy
    raise ConfigError(f"acl.default_policy: it is one of {', '.join(_DEFAULTS)}")


def _policy(where: str, shown: object) -> Policy:
    for policy in _POLICIES:
        if shown == policy:
            return policy
    raise ConfigError(f"{where}: a policy is one of {', '.join(_POLICIES)}")


def _text(where: str, shown: object) -> str:
    if not isinstance(shown, str):
        raise ConfigError(f"{where} must be a string")
    return shown


def _object(where: str, shown: object, known: Collection[str] | None = None) -> dict[str, Any]:
    if not isinstance(shown, dict):
        raise ConfigError(f"{where} must be a JSON object")
    fields = cast("dict[str, Any]", shown)
    if known is not None and (unknown := [name for name in fields if name not in known]):
        raise ConfigError(f"{where}: unknown field {unknown[0]!r}; there are {', '.join(sorted(known))}")
    return fields
