"""Hostile input on the pure service: whatever comes, there is a reply, and the state stays whole."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from consul_coord.server.routes import ROUTES
from consul_coord.server.wire import Blocked, Request
from tests.server.driver import Driver

AGENT = Driver()

WORDS = st.sampled_from(
    [
        "cas",
        "acquire",
        "release",
        "flags",
        "index",
        "wait",
        "recurse",
        "keys",
        "separator",
        "raw",
        "stale",
        "consistent",
        "token",
        "dc",
        "ns",
        "pretty",
        "note",
        "max_stale",
        "cached",
    ]
)
TEXTS = st.one_of(
    st.text(max_size=8), st.sampled_from(["0", "1", "-1", "5s", "%", "%zz", "é", "\x00", "/", ".."])
)
QUERIES = st.lists(st.tuples(WORDS, TEXTS), max_size=3).map(
    lambda pairs: "&".join(f"{name}={value}" for name, value in pairs)
)
FIELDS = st.sampled_from(
    [
        "Name",
        "Node",
        "TTL",
        "LockDelay",
        "Behavior",
        "NodeChecks",
        "ServiceChecks",
        "Checks",
        "KV",
        "Verb",
        "Key",
        "Value",
        "Flags",
        "Index",
        "Session",
        "Address",
        "Check",
        "Service",
        "CheckID",
        "Status",
        "Token",
        "DNS",
        "ID",
    ]
)
VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False),
        TEXTS,
        st.sampled_from(["set", "lock", "get-tree", "delete-tree", "passing", "release", "a", "node1"]),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(FIELDS, inner, max_size=5)),
    max_leaves=12,
)
BODIES = st.one_of(st.binary(max_size=20), VALUES.map(lambda value: json.dumps(value).encode()))
PATHS = st.tuples(st.sampled_from([route.path for route in ROUTES] + ["/", "/v1/event/"]), TEXTS).map("".join)
METHODS = st.sampled_from(["GET", "PUT", "POST", "DELETE", "OPTIONS", "HEAD"])


@settings(max_examples=1_500, deadline=None)
@given(method=METHODS, path=PATHS, query=QUERIES, body=BODIES)
def test_every_request_has_a_reply(method: str, path: str, query: str, body: bytes) -> None:
    outcome = AGENT.service.handle(Request(method, path, query, body, content_length=len(body)), AGENT.now)
    if isinstance(outcome, Blocked):
        AGENT.service.cancel(outcome.ticket)
        return
    assert 200 <= outcome.status < 600
    store = AGENT.state.store
    assert all(entry.modify_index <= store.raft_index for entry in store.kv)
    assert store.kv.keys_under("") == sorted(store.kv.rows)
