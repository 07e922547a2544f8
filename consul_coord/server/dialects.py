"""The answers in which Consul's versions differ, in one place.

Rules
- There are two tables: that of 1.8, of which every word is known, and that of the newest, as a build of 1.23
  was measured. ``ServerConfig(version=...)`` selects: 1.8 for itself and what came before it, the newest for
  all that came later.
- All other answers are the same in both.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from consul_coord.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One version's way of answering where versions differ.

    - ``redirect``: the status for a path that is not clean, or lacks its slash.
    - ``cleans_quoted``: a key whose slashes are percent-encoded is cleaned and stored, not redirected.
    - ``checks_keys``: key names with a way up, or a space at an end, are refused; not in transactions.
    - ``names_unknown_paths``: a path that Consul does not have is repeated in the 404.
    - ``malformed_ids``: the id of a session that can't be one is refused as such, not looked for.
    - ``applied``: what is put before a refusal of the state machine, except in a transaction.
    - ``partitions``: a partition is refused as a namespace is; ``enterprise`` is put before both.
    - ``lacks``: a denial says which permission is missing.
    - ``unknown_checks``: the agent refuses an unknown check with 404, in a deregistration as well.
    - ``too_many_connections``: the status with which a connection beyond the share ends; 0 for none.
    - ``waits_for_leader``: a blocking query without a leader waits until there is one.
    - ``least_gzip``: how large a reply is at least that is packed.
    - ``raw``: the content type of a raw value.
    - ``limits_chunks``: an upload without a length is measured against the limits as well.
    - ``manual``: where a 413 points to, with a place for the setting.
    - ``foreign_check``: how a check of another node is refused, given that, the node that registers, its id.
    - ``verb_first``: of an operation on the catalog the verb is looked at before the names.
    - ``refuses_nameless``: a compared check without an id fails, where it elsewhere passes without effect.
    - ``words``: what is said for what 1.8 says, by patterns.
    - ``txn_ops``: how many operations a transaction may have; ``or_empty`` adds the verb get-or-empty.
    - ``empty_read``: the index in the reply to a transaction that only reads.
    - ``described_master``: the description of a configured token that may do everything; ``lists_secrets``
      shows the secrets in the list of tokens, too.
    - ``nests_acl_settings``: the agent shows its default policy below ``ACLResolverSettings``.
    - ``tells_policy``, ``tells_backend``: headers for the default policy, and for how a read was answered.
    """

    redirect: int = 301
    cleans_quoted: bool = False
    checks_keys: bool = False
    names_unknown_paths: bool = False
    malformed_ids: bool = True
    applied: str = ""
    partitions: bool = False
    enterprise: str = "Bad request: "
    lacks: bool = False
    unknown_checks: bool = False
    too_many_connections: int = 0
    waits_for_leader: bool = False
    least_gzip: int = 0
    raw: str = "text/plain"
    limits_chunks: bool = False
    manual: str = "https://www.consul.io/docs/agent/options.html#{}"
    foreign_check: str = 'check node "{0}" does not match node "{1}"'
    verb_first: bool = False
    refuses_nameless: bool = False
    words: tuple[tuple[re.Pattern[str], str], ...] = ()
    txn_ops: int = 64
    or_empty: bool = False
    empty_read: int = 0
    described_master: str = "Master Token"
    lists_secrets: bool = False
    nests_acl_settings: bool = False
    tells_policy: bool = False
    tells_backend: bool = False

    def said(self, text: str) -> str:
        """Return how this version says what 1.8 says."""
        for old, new in self.words:
            if old.search(text):
                return old.sub(new, text)
        return text


CONSUL_1_8: Final = Dialect()
NEWEST: Final = Dialect(
    redirect=307,
    cleans_quoted=True,
    checks_keys=True,
    names_unknown_paths=True,
    malformed_ids=False,
    applied="raft apply failed: ",
    partitions=True,
    enterprise="",
    lacks=True,
    unknown_checks=True,
    too_many_connections=429,
    waits_for_leader=True,
    least_gzip=1_024,
    raw="text/plain; charset=utf-8",
    limits_chunks=True,
    manual="https://developer.hashicorp.com/consul/docs/reference/agent/configuration-file/general#{}",
    foreign_check="Node '{0}' for check '{2}' doesn't match register request node '{1}'",
    verb_first=True,
    refuses_nameless=True,
    words=tuple(
        (re.compile(old, re.DOTALL), new)
        for old, new in (
            (r'unknown KV verb "(.*)"', r"unknown KV operation: \1"),
            (r'unknown Node verb "(.*)"', r"unknown node operation: \1"),
            (r'unknown Service verb "(.*)"', r"unknown service operation: \1"),
            (r'unknown Check verb "(.*)"', r"unknown check operation: \1"),
            (
                "Must provide service name with ID",
                "Must provide service name (Service.Service) when service ID is provided",
            ),
            (r"Unknown (service|check) '(.*)'", r"Unknown \1 ID '\2'"),
            (
                r"failed inserting check: object missing primary index",
                "failed check lookup: index error: object is missing a value for this index",
            ),
        )
    ),
    txn_ops=128,
    or_empty=True,
    empty_read=1,
    described_master="Initial Management Token",
    lists_secrets=True,
    nests_acl_settings=True,
    tells_policy=True,
    tells_backend=True,
)

_VERSION: Final = re.compile(r"v?(\d+)\.(\d+)")
_LAST_OLD: Final = (1, 8)


def dialect_of(version: str) -> Dialect:
    """Return how a version answers; ``ConfigError`` for what is no version."""
    found = _VERSION.match(version)
    if found is None:
        message = f"version {version!r} is no version of Consul, such as 1.8.7 or 1.22.0"
        raise ConfigError(message)
    return CONSUL_1_8 if (int(found[1]), int(found[2])) <= _LAST_OLD else NEWEST
