"""Random operations on both sides of the differential test: the rules of a Hypothesis state machine.

Rules
- What is drawn never depends on what the sides answered: a run can be replayed from what was drawn, and a
  failure that does not come again is one of timing, not of drawing.
- Time passes for real at the agent and is then told to the reference. Where a moment decides, it is the
  agent's replies that tell on which side of it they were, and the real time that must have passed by then.
- Lock-delays and TTLs that nobody waits for are longer than any run.
"""

from __future__ import annotations

import base64
import time
import uuid
from contextlib import closing
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import quote

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.conformance.sides import UNKNOWN, Sides

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conformance.sides import Side

    Op = Callable[[Side], dict[str, Any]]

TTL: Final = 0.75  # so long that no stall of the machine is likely to reach twice of it
LOCK_DELAY: Final = 0.4
POLL: Final = 0.02
GONE_WITHIN: Final = 20.0
MISSING: Final = 7  # the pick that stands for nothing: the index 0, a session that is unknown

KV_VERBS: Final = (
    *("set", "cas", "lock", "unlock", "delete", "delete-cas", "delete-tree"),
    *("get", "get-tree", "check-index", "check-session", "check-session", "check-not-exists"),
)
CATALOG_VERBS: Final = ("set", "set", "cas", "delete", "delete-cas", "get")
KEYS = st.sampled_from(["a", "b", "d/", "d/a", "d/b", "d", "é x"])
PREFIXES = st.sampled_from(["", "d", "d/", "a", "none"])
VALUES = st.sampled_from([b"", b"1", b"two", b"\x00\xff"])
FLAGS = st.sampled_from(["", "flags=0&", "flags=7&", "flags=18446744073709551615&"])
PICKS = st.integers(0, MISSING)
BEHAVIORS = st.sampled_from(["release", "delete"])
STATUSES = st.sampled_from(["passing", "passing", "warning", "critical"])
KV_OPS = st.tuples(st.just("KV"), st.sampled_from(KV_VERBS), KEYS, VALUES, PICKS)
CATALOG_OPS = st.tuples(
    st.sampled_from(["Node", "Service", "Check"]),
    st.sampled_from(CATALOG_VERBS),
    st.sampled_from(["c1", "c2", "web"]),
    STATUSES,
    PICKS,
)


SERVICES = st.sampled_from(["web", "web", "db", "none"])
"""Names of services; one is registered by nobody."""
SERVICE_FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "Port": st.integers(80, 81),
        "Tags": st.sampled_from([["v1"], ["V1", "x"]]),
        "Meta": st.sampled_from([{}, {"ver": "1"}, {"ver": "2", "a": "b"}]),
        "Address": st.sampled_from(["", "10.0.0.7", "0.0.0.0"]),
        "Weights": st.sampled_from([{"Passing": 5}, {"Passing": 1, "Warning": 2}, {}]),
        "TaggedAddresses": st.just({"lan": {"Address": "1.2.3.4", "Port": 5}}),
        "EnableTagOverride": st.booleans(),
        "Connect": st.sampled_from([{}, {"Native": True}]),
        "Kind": st.sampled_from(["", "x"]),
    },
)
DEFINITIONS = st.sampled_from([{}, {"HTTP": "http://x", "Interval": "90s"}, {"TCP": "x"}, {"TTL": "9s"}])
OPERATORS = st.sampled_from(
    (
        *("==", "!=", "contains", "not contains", "matches", "not matches"),
        "is empty",
        "is not empty",
        "is",
        "",
    )
)
OPERANDS = st.sampled_from(
    ["v1", "1", "2", "80", "web", "passing", "critical", '"w.*"', "true", '""', "x", "("]
)
SELECTORS: Final[dict[str, tuple[str, ...]]] = {
    "/v1/health/service/{name}": (
        *("Service.Port", "Service.Meta.ver", "Service.Meta", "Service.Tags", "Service.Weights.Passing"),
        *("Checks.Status", "Checks.Type", "Checks", "Node.Meta.rack", "Service.Connect.Native"),
        *("Service.TaggedAddresses.lan.Port", "Node.TaggedAddresses", "Service.none", "Checks.Definition"),
    ),
    "/v1/catalog/service/{name}": (
        *("ServicePort", "ServiceMeta.ver", "ServiceTags", "ServiceKind", "ServiceID", "NodeMeta.rack"),
        *("ServiceEnableTagOverride", "ServiceAddress", "Meta", "ServiceWeights"),
    ),
    "/v1/health/checks/{name}": ("Status", "CheckID", "ServiceTags", "Type", "Output", "none"),
    "/v1/health/node/{node}": ("Status", "CheckID", "ServiceName", "ServiceTags", "ModifyIndex"),
    "/v1/health/state/{state}": ("Status", "CheckID", "ServiceID", "Name"),
    "/v1/catalog/node/{node}": ("Service", "ID", "Port", "Meta.ver", "Tags", "Kind", "Weights.Warning"),
    "/v1/catalog/node-services/{node}": ("Service", "Tags", "Connect.Native", "Proxy.Upstreams"),
}
READS = st.sampled_from(sorted(SELECTORS))
CONDITIONS = st.tuples(st.integers(0, 99), OPERATORS, OPERANDS, st.booleans())


class Operations(RuleBasedStateMachine):
    """Both sides, and the rules that drive them."""

    address: ClassVar[str]
    operations: ClassVar[int] = 0
    woken: ClassVar[int] = 0
    expired: ClassVar[int] = 0
    said: ClassVar[list[str]] = []

    def __init__(self) -> None:
        super().__init__()
        self.prefix = f"diff/{uuid.uuid4().hex[:8]}/"
        self.node = f"diff-{uuid.uuid4().hex[:8]}"
        self.sides = Sides(self.address)
        self.both = self.sides.both
        self.sessions: list[str] = []
        type(self).said = self.sides.said

    @initialize()
    def same_start(self) -> None:
        """Write once to every table, so that no index older than this run is seen."""
        self.both("PUT", f"/v1/kv/{self.prefix}first", b"x")
        self.both("DELETE", f"/v1/kv/{self.prefix}first")
        self.register("passing", 80)
        self.create_session("release", "0s", "", checked=False)
        self.create_query(0, "")
        self.register_service("db", "gone", {}, 1)
        self.deregister({"ServiceID": "gone"})  # so that both know of one that went last
        self.both("GET", f"/v1/kv/{self.prefix}first")

    # Sessions

    @rule(
        behavior=BEHAVIORS,
        delay=st.sampled_from(["0s", "60s"]),
        ttl=st.sampled_from(["", "24h"]),
        checked=st.booleans(),
    )
    def create_session(self, behavior: str, delay: str, ttl: str, *, checked: bool) -> None:
        checks: dict[str, object] = (
            {"NodeChecks": ["c1"], "ServiceChecks": [{"ID": "c2"}]} if checked else {"NodeChecks": []}
        )
        self.new_session(Behavior=behavior, LockDelay=delay, TTL=ttl, **checks)

    @rule(pick=PICKS)
    def destroy_session(self, pick: int) -> None:
        self.both("PUT", f"/v1/session/destroy/{self.session(pick)}")

    @rule(pick=PICKS)
    def look_at_sessions(self, pick: int) -> None:
        self.both("PUT", f"/v1/session/renew/{self.session(pick)}")
        self.both("GET", f"/v1/session/info/{self.session(pick)}")
        self.both("GET", f"/v1/session/node/{self.node}")

    # Keys

    @rule(key=KEYS, value=VALUES, flags=FLAGS)
    def put(self, key: str, value: bytes, flags: str) -> None:
        self.both("PUT", f"{self.path(key)}?{flags}", value)

    @rule(key=KEYS, value=VALUES, flags=FLAGS, pick=PICKS)
    def put_cas(self, key: str, value: bytes, flags: str, pick: int) -> None:
        index = self.index(pick)
        self.sides.each(lambda side: ("PUT", f"{self.path(key)}?{flags}cas={index[side]}", value))

    @rule(key=KEYS, value=VALUES, flags=FLAGS, pick=PICKS, verb=st.sampled_from(["acquire", "release"]))
    def lock(self, key: str, value: bytes, flags: str, pick: int, verb: str) -> None:
        self.both("PUT", f"{self.path(key)}?{flags}{verb}={self.session(pick)}", value)

    @rule(key=KEYS)
    def delete(self, key: str) -> None:
        self.both("DELETE", self.path(key))

    @rule(key=KEYS, pick=PICKS)
    def delete_cas(self, key: str, pick: int) -> None:
        index = self.index(pick)
        self.sides.each(lambda side: ("DELETE", f"{self.path(key)}?cas={index[side]}", b""))

    @rule(prefix=PREFIXES)
    def delete_tree(self, prefix: str) -> None:
        self.both("DELETE", f"{self.path(prefix)}?recurse")

    @rule(key=KEYS, prefix=PREFIXES)
    def look_at_keys(self, key: str, prefix: str) -> None:
        self.both("GET", self.path(key))
        self.both("GET", f"{self.path(prefix)}?recurse")
        self.both("GET", f"{self.path(prefix)}?keys&separator=/")

    @rule(ops=st.lists(KV_OPS | KV_OPS | CATALOG_OPS, min_size=1, max_size=6))
    def txn(self, ops: list[tuple[str, str, str, Any, int]]) -> None:
        makers = [self.op(*op) for op in ops]
        self.sides.each(lambda side: ("PUT", "/v1/txn", [make(side) for make in makers]))

    # The catalog

    @rule(status=STATUSES, port=st.integers(80, 81))
    def register(self, status: str, port: int) -> None:
        registered = {
            "Node": self.node,
            "Address": "10.0.0.2",
            "Service": {"Service": "web", "Port": port},
            "Checks": [
                {"CheckID": "c1", "Name": "c1", "Status": status},
                {"CheckID": "c2", "Name": "c2", "Status": "passing", "ServiceID": "web"},
            ],
        }
        self.both("PUT", "/v1/catalog/register", registered)

    @rule(
        name=st.sampled_from(["web", "db"]),
        service=st.sampled_from(["web", "w2", "db"]),
        fields=SERVICE_FIELDS,
        rack=st.integers(1, 2),
    )
    def register_service(self, name: str, service: str, fields: dict[str, Any], rack: int) -> None:
        registered = {"ID": service, "Service": name, **fields}
        meta = {"rack": str(rack), "run": self.node}
        body = {"Node": self.node, "Address": "10.0.0.2", "NodeMeta": meta, "Service": registered}
        self.both("PUT", "/v1/catalog/register", body)

    @rule(
        read=READS,
        name=SERVICES,
        state=st.sampled_from(["any", "critical", "passing"]),
        query=st.sampled_from(["", "", "passing", "passing=x", "tag=v1", "tag=V1&tag=x", "node-meta=rack:1"]),
        conditions=st.lists(CONDITIONS, max_size=2),
        word=st.sampled_from(["and", "or"]),
    )
    def look_at_services(
        self, *, read: str, name: str, state: str, query: str, conditions: list[Any], word: str
    ) -> None:
        """Read services or checks of this run's node, filtered."""
        selectors = SELECTORS[read]
        terms = [
            f"{'not ' * negated}{selectors[number % len(selectors)]} {operator}"
            f"{'' if 'empty' in operator else f' {operand}'}"
            for number, operator, operand, negated in conditions
        ]
        path = read.format(name=name, node=self.node, state=state)
        own = f"node-meta=run:{self.node}" if "state" in read or "{name}" in read else ""
        expression = f"filter={quote(f' {word} '.join(terms))}" if terms else ""
        self.both("GET", f"{path}?{'&'.join(filter(None, (own, query, expression)))}")

    @rule(check=st.sampled_from(["c1", "c2"]), status=STATUSES, definition=DEFINITIONS)
    def register_check(self, check: str, status: str, definition: dict[str, str]) -> None:
        registered = {
            "CheckID": check,
            "Status": status,
            "ServiceID": "web" if check == "c2" else "",
            "Definition": definition,
        }
        body = {"Node": self.node, "SkipNodeUpdate": True, "Check": registered}
        self.both("PUT", "/v1/catalog/register", body)

    @rule(pick=PICKS, name=st.sampled_from(["", "q1", "q2"]))
    def create_query(self, pick: int, name: str) -> None:
        named = {"Name": f"{self.prefix}{name}"} if name else {}
        body = {**named, "Session": self.session(pick), "Service": {"Service": "web"}}
        self.both("POST", "/v1/query", body)
        self.both("GET", "/v1/query")

    @rule(
        what=st.sampled_from(
            [{}, {"CheckID": "c1"}, {"CheckID": "c2"}, {"ServiceID": "web"}, {"ServiceID": "w2"}]
        )
    )
    def deregister(self, what: dict[str, str]) -> None:
        self.both("PUT", "/v1/catalog/deregister", {"Node": self.node, **what})

    @rule()
    def look_at_node(self) -> None:
        self.both("GET", f"/v1/health/node/{self.node}")
        self.both("GET", f"/v1/catalog/node/{self.node}")

    # Waiting

    @rule(
        kind=st.sampled_from(
            [*("key", "tree", "keys", "session", "node", "health", "catalog"), "service", "healthy"]
        ),
        key=KEYS,
        prefix=PREFIXES,
        pick=PICKS,
    )
    def watch(self, kind: str, key: str, prefix: str, pick: int) -> None:
        path = {
            "key": f"{self.path(key)}?",
            "tree": f"{self.path(prefix)}?recurse&",
            "keys": f"{self.path(prefix)}?keys&",
            "session": f"/v1/session/info/{self.session(pick)}?",
            "node": f"/v1/session/node/{self.node}?",
            "health": f"/v1/health/node/{self.node}?",
            "catalog": f"/v1/catalog/node/{self.node}?",
            "service": "/v1/catalog/service/web?",
            "healthy": "/v1/health/service/web?",
        }[kind]
        self.sides.watch(path)

    # The passing of time

    @rule(
        seldom=st.integers(0, 9), behavior=BEHAVIORS, keys=st.lists(KEYS, min_size=1, max_size=2, unique=True)
    )
    def expire(self, seldom: int, behavior: str, keys: list[str]) -> None:
        """Let a session run out that holds keys."""
        if seldom:
            return
        began = time.monotonic()
        session = self.lock_all(keys, TTL=f"{TTL}s", Behavior=behavior, LockDelay="60s")
        if session is None:
            return
        while (seen := self.sides.agent.ask("GET", f"/v1/session/info/{session}")).body:
            assert time.monotonic() - began < GONE_WITHIN, f"the agent keeps {session}"
            time.sleep(POLL)
        assert time.monotonic() - began >= 2 * TTL, "the agent ended a session before twice its TTL"
        self.sides.pass_time(2 * TTL)
        self.sides.follow(seen, "GET", f"/v1/session/info/{session}")
        self.look_at_keys(keys[0], "")
        type(self).expired += 1

    @rule(seldom=st.integers(0, 4), behavior=BEHAVIORS, key=KEYS)
    def wait_for_lock_delay(self, seldom: int, behavior: str, key: str) -> None:
        """Destroy a session that holds a key, and get the key when its lock-delay is over."""
        if seldom or (other := self.new_session(NodeChecks=[])) is None:
            return
        session = self.lock_all([key], LockDelay=f"{LOCK_DELAY}s", Behavior=behavior)
        if session is None:
            return
        began = time.monotonic()
        self.both("PUT", f"/v1/session/destroy/{session}")
        target = f"{self.path(key)}?acquire={other}"
        while (theirs := self.sides.agent.ask("PUT", target)).body is False:
            assert time.monotonic() - began < GONE_WITHIN, f"the agent does not give {key}"
            assert self.sides.follow(theirs, "PUT", target).body is False
            time.sleep(POLL)
        assert time.monotonic() - began >= LOCK_DELAY, "the agent gave a key before its lock-delay was over"
        self.sides.pass_time(LOCK_DELAY)
        self.sides.follow(theirs, "PUT", target)
        type(self).expired += 1

    def lock_all(self, keys: list[str], **fields: object) -> str | None:
        """Create a session that holds the keys; None when that is not to be had."""
        session = self.new_session(NodeChecks=[], **fields)
        if session is None:
            return None
        ops = [{"KV": {"Verb": "lock", "Key": self.prefix + key, "Session": session}} for key in keys]
        if self.both("PUT", "/v1/txn", ops).status == 200:
            return session
        self.both("PUT", f"/v1/session/destroy/{session}")
        return None

    def new_session(self, **fields: object) -> str | None:
        """Create a session; None when it is refused."""
        created = self.both("PUT", "/v1/session/create", {"Node": self.node, **fields})
        if created.status != 200:
            return None
        session: str = created.body["ID"]
        self.sessions.append(session)
        return session

    def teardown(self) -> None:
        with closing(self.sides):  # a difference may show as late as here
            for session in self.sessions:
                self.both("PUT", f"/v1/session/destroy/{session}")
            self.both("PUT", "/v1/catalog/deregister", {"Node": self.node})
            self.both("DELETE", f"/v1/kv/{self.prefix}?recurse")
        type(self).operations += len(self.sides.said)
        type(self).woken += self.sides.woken

    # What is meant by what was drawn

    def path(self, key: str) -> str:
        return f"/v1/kv/{quote(self.prefix + key)}"

    def session(self, pick: int) -> str:
        return self.sessions[-1 - pick] if pick < len(self.sessions) else UNKNOWN

    def index(self, pick: int) -> tuple[int, int]:
        return (0, 0) if pick == MISSING else self.sides.indexes.pick(pick)

    def op(self, kind: str, verb: str, name: str, value: Any, pick: int) -> Op:
        index = self.index(pick)
        if kind == "KV":
            return lambda side: {"KV": {**self.kv(verb, name, value, pick), "Index": index[side]}}
        return lambda side: {kind: self.catalog(kind, verb, name, value, index[side])}

    def kv(self, verb: str, key: str, value: bytes, pick: int) -> dict[str, Any]:
        fields = {
            "Verb": verb,
            "Key": self.prefix + key,
            "Value": base64.b64encode(value).decode(),
            "Flags": pick,
        }
        if "lock" in verb or "session" in verb:
            fields["Session"] = "" if verb == "check-session" and pick == MISSING - 1 else self.session(pick)
        return fields

    def catalog(self, kind: str, verb: str, name: str, status: str, index: int) -> dict[str, Any]:
        row: dict[str, Any] = {"ModifyIndex": index}
        if kind == "Node":
            return {"Verb": verb, kind: {"Node": self.node, "Address": f"10.0.0.{len(status)}", **row}}
        if kind == "Service":
            row |= {"ID": name, "Service": name, "Port": len(status)}
            return {"Verb": verb, "Node": self.node, kind: row}
        row |= {"CheckID": name, "Name": name, "Status": status}
        row |= {"ServiceID": "web"} if name == "c2" else {}
        return {"Verb": verb, kind: {"Node": self.node, **row}}
