"""ACL tokens and policies: what they are at the beginning, how they are changed, whose rights they give.

Rules
- The configured tokens become ordinary ones. Each with rules of its own has a policy of its own for them; an
  accessor is made from the secret, so that it stays the same.
- A token names policies by their ids. A deleted policy goes from all tokens; one for other datacenters gives
  nothing here.
- Ids and the names of policies are looked up without regard to case, secrets are not.
"""

from __future__ import annotations

import base64
import re
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from consul_coord.server.acl import ANONYMOUS, EVERYTHING, UNKNOWN, Authorizer, Token
from consul_coord.server.failures import LeadersRefusal, StateError
from consul_coord.server.gotext import quote
from consul_coord.server.ids import is_uuid, lookup_key
from consul_coord.server.records import PolicyRecord, TokenRecord
from consul_coord.server.store import POLICIES, TOKENS, fold

if TYPE_CHECKING:
    from collections.abc import Sequence

    from consul_coord.server.acl import AclConfig
    from consul_coord.server.config import ServerConfig
    from consul_coord.server.store import Store

MANAGEMENT: Final = "00000000-0000-0000-0000-000000000001"
"""The id of the policy that permits everything."""

BOOTSTRAP: Final = "acl-token-bootstrap"
"""The index at which a token for everything was made for the first time."""

_OF_ANONYMOUS: Final = "anonymous"
_RESERVED: Final = "00000000-0000-0000-0000-0000000000"
_NAME: Final = re.compile(r"[A-Za-z0-9\-_]{1,128}")
_GLOBAL_MANAGEMENT: Final = PolicyRecord(
    MANAGEMENT,
    "global-management",
    "Builtin Policy that grants unlimited access",
    '\nacl = "write"\nagent_prefix "" {\n\tpolicy = "write"\n}\nevent_prefix "" {\n\tpolicy = "write"\n}\n'
    'key_prefix "" {\n\tpolicy = "write"\n}\nkeyring = "write"\nnode_prefix "" {\n\tpolicy = "write"\n}\n'
    'operator = "write"\nquery_prefix "" {\n\tpolicy = "write"\n}\nservice_prefix "" {\n\tpolicy = "write"\n'
    '\tintentions = "write"\n}\nsession_prefix "" {\n\tpolicy = "write"\n}',
)


# The beginning


def seed(store: Store, index: int, config: AclConfig, management: str, created: str) -> None:
    """Fill a new store's tables; ``management`` describes the tokens that permit everything."""
    from consul_coord.server import (
        rules,  # with the reader of policies, which a server without ACLs can spare
    )

    _place_policy(store, index, _GLOBAL_MANAGEMENT)
    seeds = [(_OF_ANONYMOUS, config.anonymous), *config.tokens.items()]
    for number, (secret, given) in enumerate(seeds):
        anonymous = secret == _OF_ANONYMOUS
        policies = (MANAGEMENT,) if given.management else ()
        if given.rules and not given.management:
            name = f"configured-{secret if anonymous else number}"
            policy = PolicyRecord(_made_from(name), name, "", rules.write(given.rules))
            _place_policy(store, index, policy)
            policies = (policy.id,)
        described = "Anonymous Token" if anonymous else management if given.management else ""
        accessor = ANONYMOUS if anonymous else _made_from(secret)
        token = TokenRecord(accessor, secret, described, policies, created=created)
        kind = "management" if given.management else ""
        token = replace(token, digest=digest_of_token(token, kind), create_index=index, modify_index=index)
        store.tokens.apply(token.accessor, None, token)
        if given.management:
            store.indexes[BOOTSTRAP] = index
    store.indexes[TOKENS] = index


def clear(store: Store) -> None:
    """Forget all tokens and policies."""
    for key, policy in list(store.policies.rows.items()):
        store.policies.apply(key, policy, None)
    for key, token in list(store.tokens.rows.items()):
        store.tokens.apply(key, token, None)


def _place_policy(store: Store, index: int, policy: PolicyRecord) -> None:
    store.policies.apply(policy.id, None, replace(policy, create_index=index, modify_index=index))
    store.indexes[POLICIES] = index


def _made_from(name: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, name))


# Rights


def authorizer_of(store: Store, config: ServerConfig, secret: str, datacenter: str) -> Authorizer:
    """Return what a request with this secret may do; refuse an unknown one."""
    acl = config.acl
    if acl is None:
        return EVERYTHING
    token = store.tokens.by_secret.get(secret or acl.default_token or _OF_ANONYMOUS)
    if token is None:
        raise LeadersRefusal(403, UNKNOWN)
    lacks = config.dialect.lacks
    return Authorizer(
        _rights(store, token, datacenter), acl.default_policy, accessor=token.accessor, lacks=lacks
    )


def _rights(store: Store, token: TokenRecord, datacenter: str) -> Token:
    if MANAGEMENT in token.policies:
        return _EVERYTHING
    from consul_coord.server import rules

    texts = tuple(
        policy.rules
        for policy in policies_of(store, token)
        if not policy.datacenters or datacenter in policy.datacenters
    )
    return rules.rights(texts)


_EVERYTHING: Final = Token(management=True)


def policies_of(store: Store, token: TokenRecord) -> list[PolicyRecord]:
    """Return the policies of a token that are still there."""
    return [policy for policy in map(store.policies.get, token.policies) if policy is not None]


# Policies


def find_policy(store: Store, policy: str) -> PolicyRecord | None:
    """Return a policy by its id; raise ``StateError`` when it is malformed."""
    return store.policies.get(_key(policy, "failed acl policy lookup"))


def policy_named(store: Store, name: str) -> PolicyRecord | None:
    """Return a policy by its name."""
    return next((each for each in store.policies if fold(each.name) == fold(name)), None)


def check_policy(store: Store, policy: PolicyRecord) -> None:
    """Refuse a policy that can't be created, or can't replace the one whose id it has."""
    if not policy.name:
        raise StateError("Invalid Policy: no Name is set")
    if not _NAME.fullmatch(policy.name):
        raise StateError(
            "Invalid Policy: invalid Name. Only alphanumeric characters, '-' and '_' are allowed"
        )
    if policy.id and not is_uuid(policy.id):
        raise StateError("Policy ID invalid UUID")
    known = store.policies.get(fold(policy.id))
    if policy.id and known is None:
        message = f"cannot find policy {policy.id}"
        raise StateError(message)
    if (known is None or known.name != policy.name) and policy_named(store, policy.name) is not None:
        message = f"Invalid Policy: A {'policy' if known else 'Policy'} with {'name' if known else 'Name'} "
        raise StateError(f"{message}{quote(policy.name)} already exists")
    if known is not None and policy.id == MANAGEMENT:
        _check_builtin(known, policy)
    from consul_coord.server import rules

    rules.parse(policy.rules)


def _check_builtin(known: PolicyRecord, policy: PolicyRecord) -> None:
    if policy.datacenters:
        raise StateError("Changing the Datacenters of the builtin global-management policy is not permitted")
    if policy.rules != known.rules:
        raise StateError("Changing the Rules for the builtin global-management policy is not permitted")


def put_policy(store: Store, index: int, policy: PolicyRecord) -> PolicyRecord:
    """Add or replace a policy, and return it as it is stored."""
    key = fold(policy.id)
    known = store.policies.get(key)
    stored = replace(policy, id=key, create_index=known.create_index if known else index, modify_index=index)
    store.policies.put(key, stored)
    store.changed(POLICIES, index)
    return stored


def check_deletion_of_policy(policy: str) -> None:
    """Refuse to delete the builtin policy."""
    if policy == MANAGEMENT:
        raise StateError("Delete operation not permitted on the builtin global-management policy")


def delete_policy(store: Store, index: int, policy: str) -> None:
    """Delete a policy, if there is one."""
    if fold(policy) in store.policies.rows:
        store.policies.remove(fold(policy))
        store.changed(POLICIES, index)


# Tokens


def find_token(store: Store, accessor: str) -> TokenRecord | None:
    """Return a token by its accessor; raise ``StateError`` when it is malformed."""
    return store.tokens.get(_key(accessor, "failed acl token lookup"))


def token_to_set(store: Store, accessor: str) -> TokenRecord | None:
    """Return the token that is to be created or changed under an accessor, if there is one."""
    try:
        return find_token(store, accessor)
    except StateError as error:
        message = f"Failed acl token lookup by accessor: {error}"
        raise StateError(message) from None


def check_new(store: Store, accessor: str, secret: str) -> None:
    """Refuse ids of a new token that can't be, that are reserved or taken; empty ones will be made."""
    for name, given, taken in (
        ("AccessorID", accessor, fold(accessor) in store.tokens.rows),
        ("SecretID", secret, secret in store.tokens.by_secret),
    ):
        if given and not is_uuid(given):
            message = f"Invalid Token: {name} is not a valid UUID"
            raise StateError(message)
        if taken:
            message = f"Invalid Token: {name} is already in use"
            raise StateError(message)
        if given.startswith(_RESERVED):
            message = f"Invalid Token: UUIDs with the prefix {quote(_RESERVED)} are reserved"
            raise StateError(message)


def check_change(known: TokenRecord | None, accessor: str, secret: str, *, local: bool) -> TokenRecord:
    """Return the token that is to be changed; refuse an unknown one, and what may not change."""
    if known is None:
        message = f"Cannot find token {quote(accessor)}"
        raise StateError(message)
    if secret not in ("", known.secret):
        raise StateError("Changing a tokens SecretID is not permitted")
    if local != known.local:
        message = f"cannot toggle local mode of {accessor}"
        raise StateError(message)
    if accessor != known.accessor:
        raise StateError("The ACL Token AccessorID field is immutable")
    return known


def linked(store: Store, links: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Return the ids of policies that are named by id or by name, each once."""
    return tuple(dict.fromkeys(_linked(store, policy, name) for policy, name in links))


def _linked(store: Store, policy: str, name: str) -> str:
    if not policy:
        if (named := policy_named(store, name)) is not None:
            return named.id
        message = f"No such ACL policy with name {quote(name)}"
        raise StateError(message)
    try:
        found = find_policy(store, policy)
    except StateError as error:
        message = f"Error looking up policy for id {quote(policy)}: {error}"
        raise StateError(message) from None
    if found is None:
        message = f"No such ACL policy with ID {quote(policy)}"
        raise StateError(message)
    return found.id


def put_token(store: Store, index: int, token: TokenRecord) -> TokenRecord:
    """Add or replace a token, and return it as it is stored."""
    key = fold(token.accessor)
    known = store.tokens.get(key)
    stored = replace(token, create_index=known.create_index if known else index, modify_index=index)
    store.tokens.put(key, stored)
    store.changed(TOKENS, index)
    return stored


def check_deletion_of_token(accessor: str, own: str) -> None:
    """Refuse to delete the anonymous token, and that of the request itself."""
    if not is_uuid(accessor):
        raise StateError("Accessor ID is missing or an invalid UUID")
    if accessor == ANONYMOUS:
        raise StateError("Delete operation not permitted on the anonymous token")
    if fold(accessor) == fold(own):
        raise StateError("Deletion of the request's authorization token is not permitted")


def delete_token(store: Store, index: int, accessor: str) -> None:
    """Delete a token, if there is one."""
    if fold(accessor) in store.tokens.rows:
        store.tokens.remove(fold(accessor))
        store.changed(TOKENS, index)


def check_bootstrap(store: Store) -> None:
    """Refuse a second first token."""
    if index := store.indexes.get(BOOTSTRAP):
        message = f"Permission denied: ACL bootstrap no longer allowed (reset index: {index})"
        raise LeadersRefusal(403, message)


def wall_time() -> str:
    """Return the present time as Consul shows it."""
    from datetime import UTC, datetime

    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%f}".rstrip("0").rstrip(".") + "Z"


def first_token() -> TokenRecord:
    """Return the token that a bootstrap makes, without its ids."""
    return TokenRecord("", "", "Bootstrap Token (Global Management)", (MANAGEMENT,))


# Hashes


def digest_of_token(token: TokenRecord, kind: str = "") -> str:
    """Return the hash of what a token says, as Consul makes it."""
    return _digest(token.description, kind, "local" if token.local else "global", *token.policies)


def digest_of_policy(policy: PolicyRecord) -> str:
    """Return the hash of what a policy says, as Consul makes it."""
    return _digest(policy.name, policy.description, policy.rules, *policy.datacenters)


def _digest(*parts: str) -> str:
    import hashlib

    made = hashlib.blake2b("".join(parts).encode("utf-8", "surrogatepass"), digest_size=32).digest()
    return base64.b64encode(made).decode("ascii")


def _key(text: str, where: str) -> str:
    try:
        return lookup_key(text)
    except StateError as error:
        message = f"{where}: {error}"
        raise StateError(message) from None
