"""/v1/acl/: tokens and policies, created, read, changed, cloned and deleted.

Rules
- Reading takes ``acl = "read"``, changing ``acl = "write"``; everybody may read their own token. A secret is
  shown to whoever may write.
- A token has policies. Roles, identities and an end of its own are refused.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from consul_coord.server import gojson
from consul_coord.server import tokens as ops
from consul_coord.server.acl import ANONYMOUS, UNKNOWN
from consul_coord.server.call import Read, Seen
from consul_coord.server.endpoints import definitions
from consul_coord.server.failures import LeadersRefusal, Refusal, StateError
from consul_coord.server.gotext import GoParseError
from consul_coord.server.records import PolicyRecord, TokenRecord
from consul_coord.server.store import POLICIES, TOKENS
from consul_coord.server.wire import text_reply

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord.server.acl import Policy
    from consul_coord.server.call import Call
    from consul_coord.server.store import Store
    from consul_coord.server.wire import Reply

_CLONE: Final = "/clone"
_UNREAD: Final = (("X-Consul-Index", "1"), ("X-Consul-Knownleader", "false"), ("X-Consul-Lastcontact", "0"))
"""The headers of a denied read, for which no leader was asked."""


# Policies


def policies(call: Call) -> Read:
    """Read all policies, without their rules, in order of their ids."""
    _require(call, "read")

    def look(store: Store) -> Seen:
        shown = [_listed_policy(policy) for policy in store.policies.sorted()]
        return Seen(store.index_of(POLICIES), call.json(shown), ((POLICIES,),))

    return Read(look)


def policy(call: Call) -> Read:
    """Read a policy by its id."""
    if not call.tail:
        raise Refusal(400, "Bad request: Missing policy ID")
    return _read_policy(call, lambda store: ops.find_policy(store, call.tail))


def policy_by_name(call: Call) -> Read:
    """Read a policy by its name."""
    if not call.tail:
        raise Refusal(400, "Bad request: Missing policy Name")
    return _read_policy(call, lambda store: ops.policy_named(store, call.tail))


def _read_policy(call: Call, find: Callable[[Store], PolicyRecord | None]) -> Read:
    _require(call, "read")

    def look(store: Store) -> Seen:
        found = find(store)
        reply = _unknown() if found is None else call.json(_full_policy(found))
        return Seen(store.index_of(POLICIES), reply, ((POLICIES,),))

    return Read(look)


def create_policy(call: Call) -> Reply:
    """Create a policy."""
    sent = _decode(call, "Policy", POLICY)
    if sent.get("ID"):
        raise Refusal(400, "Bad request: Cannot specify the ID when creating a new policy")
    return _put_policy(call, "", sent)


def update_policy(call: Call) -> Reply:
    """Replace a policy."""
    if not call.tail:
        raise Refusal(400, "Bad request: Missing policy ID")
    sent = _decode(call, "Policy", POLICY)
    if sent.get("ID", "") not in ("", call.tail):
        raise Refusal(400, "Bad request: Policy ID in URL and payload do not match")
    return _put_policy(call, call.tail, sent)


def _put_policy(call: Call, policy_id: str, sent: dict[str, Any]) -> Reply:
    _require(call, "write")
    record = PolicyRecord(
        policy_id,
        sent.get("Name", ""),
        sent.get("Description", ""),
        sent.get("Rules", ""),
        sent.get("Datacenters", ()),
    )
    return call.json(_full_policy(call.state.put_policy(record)))


def delete_policy(call: Call) -> Reply:
    """Delete a policy; an unknown one is fine."""
    if not call.tail:
        raise Refusal(400, "Bad request: Missing policy ID")
    _require(call, "write")
    call.state.delete_policy(call.tail)
    return call.json(value=True)


def _listed_policy(record: PolicyRecord) -> dict[str, object]:
    return {
        "ID": record.id,
        "Name": record.name,
        "Description": record.description,
        "Datacenters": list(record.datacenters) or None,
        **_hash_and_indexes(record, ops.digest_of_policy(record)),
    }


def _full_policy(record: PolicyRecord) -> dict[str, object]:
    return {
        "ID": record.id,
        "Name": record.name,
        "Description": record.description,
        "Rules": record.rules,
        **({"Datacenters": list(record.datacenters)} if record.datacenters else {}),
        **_hash_and_indexes(record, ops.digest_of_policy(record)),
    }


# Tokens


def tokens(call: Call) -> Read:
    """Read all tokens, without their secrets, in order of their accessors."""
    _require(call, "read")
    wanted = call.params.get("policy")
    of_none = call.params.get("role") or call.params.get("authmethod")

    secret = _secrets(call) if call.state.config.dialect.lists_secrets else _no_secret

    def look(store: Store) -> Seen:
        shown = [
            _described_token(store, token, secret(token))
            for token in store.tokens.sorted()
            if not of_none and (not wanted or wanted in token.policies)
        ]
        return Seen(store.index_of(TOKENS), call.json(shown), ((TOKENS,),))

    return Read(look)


def token(call: Call) -> Read:
    """Read a token by its accessor."""
    if not call.tail:
        raise Refusal(400, "Bad request: Missing token ID")
    _require(call, "read")
    return _read_token(call, lambda store: ops.find_token(store, call.tail), _secrets(call))


def own_token(call: Call) -> Read:
    """Read the token of the request."""
    own = call.authorizer.accessor
    return _read_token(call, lambda store: None if own == ANONYMOUS else ops.find_token(store, own), _secret)


def _secret(record: TokenRecord) -> str:
    return record.secret


def _hidden(_: TokenRecord) -> str:
    return "<hidden>"


def _no_secret(_: TokenRecord) -> str:
    return ""


def _secrets(call: Call) -> Callable[[TokenRecord], str]:
    """Return how the caller may see secrets."""
    return _secret if call.authorizer.may("acl", "", "write") else _hidden


def _read_token(
    call: Call, find: Callable[[Store], TokenRecord | None], secret: Callable[[TokenRecord], str]
) -> Read:
    def look(store: Store) -> Seen:
        found = find(store)
        reply = _unknown() if found is None else call.json(_described_token(store, found, secret(found)))
        return Seen(store.index_of(TOKENS, POLICIES), reply, ((TOKENS,), (POLICIES,)))

    return Read(look)


def create_token(call: Call) -> Reply:
    """Create a token, with its own ids or made ones."""
    sent = _decode(call, "Token", TOKEN)
    _require(call, "write")
    if accessor := sent.get("AccessorID", ""):
        ops.token_to_set(call.state.store, accessor)
    ops.check_new(call.state.store, accessor, sent.get("SecretID", ""))
    return _told(call, call.state.create_token(_token_record(call, accessor, sent)))


def update_token(call: Call) -> Reply:
    """Change a token, or clone it."""
    accessor = call.tail.removesuffix(_CLONE)
    if not accessor:
        raise Refusal(400, "Bad request: Missing token ID")
    sent = _decode(call, "Token", TOKEN)
    if call.tail.endswith(_CLONE):
        return _clone(call, accessor, sent.get("Description", ""))
    if sent.get("AccessorID", "") not in ("", accessor):
        raise Refusal(400, "Bad request: Token Accessor ID in URL and payload do not match")
    _require(call, "write")
    known = ops.token_to_set(call.state.store, accessor)
    ops.check_change(known, accessor, sent.get("SecretID", ""), local=sent.get("Local", False))
    return _told(call, call.state.change_token(_token_record(call, accessor, sent)))


def _clone(call: Call, accessor: str, description: str) -> Reply:
    _require(call, "write")
    found = ops.find_token(call.state.store, accessor)
    if found is None:
        raise LeadersRefusal(403, UNKNOWN)
    twin = replace(found, accessor="", secret="", description=description or found.description)
    return _told(call, call.state.create_token(twin))


def delete_token(call: Call) -> Reply:
    """Delete a token; an unknown one is fine."""
    if not call.tail:
        raise Refusal(400, "Bad request: Missing token ID")
    _require(call, "write")
    call.state.delete_token(call.tail, call.authorizer.accessor)
    return call.json(value=True)


def bootstrap(call: Call) -> Reply:
    """Create the first token that may do everything."""
    made = call.state.bootstrap()
    return call.json({"ID": made.secret, **_described_token(call.state.store, made, made.secret)})


def _token_record(call: Call, accessor: str, sent: dict[str, Any]) -> TokenRecord:
    if sent.get("AuthMethod"):
        raise StateError("AuthMethod field is disallowed outside of Login")
    links = [(link.get("ID", ""), link.get("Name", "")) for link in sent.get("Policies", ())]
    return TokenRecord(
        accessor,
        sent.get("SecretID", ""),
        sent.get("Description", ""),
        ops.linked(call.state.store, links),
        sent.get("Local", False),
    )


def _told(call: Call, record: TokenRecord) -> Reply:
    return call.json(_described_token(call.state.store, record, record.secret))


def _described_token(store: Store, record: TokenRecord, secret: str = "") -> dict[str, object]:
    links = [{"ID": policy.id, "Name": policy.name} for policy in ops.policies_of(store, record)]
    return {
        "AccessorID": record.accessor,
        **({"SecretID": secret} if secret else {}),
        "Description": record.description,
        **({"Policies": links} if links else {}),
        "Local": record.local,
        "CreateTime": record.created,
        **_hash_and_indexes(record, record.digest),
    }


# Both


def _hash_and_indexes(record: PolicyRecord | TokenRecord, digest: str) -> dict[str, object]:
    return {"Hash": digest, "CreateIndex": record.create_index, "ModifyIndex": record.modify_index}


def _require(call: Call, policy: Policy) -> None:
    call.authorizer.require("acl", "", policy, _UNREAD if call.request.method == "GET" else ())


def _unknown() -> Reply:
    return text_reply(403, UNKNOWN)


def _decode(call: Call, what: str, reader: gojson.ObjectReader) -> dict[str, Any]:
    try:
        found: dict[str, Any] = reader(gojson.decode(call.request.body), "value")
    except GoParseError as error:
        why = definitions.unknown_namespace(error)
        raise Refusal(400, f"Bad request: {what} decoding failed: {why}") from None
    return found


def _without(name: str) -> gojson.Reader:
    def reader(value: object, _where: str) -> None:
        if value not in ("", "0", "0s", [], {}):
            raise Refusal(501, f"The reference server has no {name} of tokens: use a Consul agent for it")

    return reader


_LINK: Final = gojson.ObjectReader(
    {"ID": gojson.text, "Name": gojson.text}, "", "structs.ACLTokenPolicyLink", flat=True
)
_NOT_USED: Final[dict[str, gojson.Reader]] = {
    "Hash": gojson.text,
    "CreateIndex": gojson.uint64,
    "ModifyIndex": gojson.uint64,
}
POLICY: Final = gojson.ObjectReader(
    {
        "ID": gojson.text,
        "Name": gojson.text,
        "Description": gojson.text,
        "Rules": gojson.text,
        "Datacenters": gojson.texts,
        **_NOT_USED,
    },
    "",
    "struct { Hash string; *structs.Alias }",
)
TOKEN: Final = gojson.ObjectReader(
    {
        "AccessorID": gojson.text,
        "SecretID": gojson.text,
        "Description": gojson.text,
        "Policies": gojson.list_of(_LINK, "[]structs.ACLTokenPolicyLink"),
        "Local": gojson.boolean,
        "AuthMethod": gojson.text,
        "Roles": _without("Roles"),
        "ServiceIdentities": _without("ServiceIdentities"),
        "NodeIdentities": _without("NodeIdentities"),
        "ExpirationTTL": _without("ExpirationTTL"),
        "ExpirationTime": _without("ExpirationTime"),
        "CreateTime": gojson.anything,
        **_NOT_USED,
    },
    "",
    "struct { ExpirationTTL interface {}; Hash string; *structs.Alias }",
)
