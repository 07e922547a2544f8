"""Random operations on the reference server and on a real agent, reply against reply.

Rules
- Each operation goes to the agent first; ids that it makes are then made by the reference as well, so ids are
  equal.
- Indexes differ in value and must agree in order: equal where equal, rising where rising (``Indexes``).
- Blocking queries are in flight all the while: those that the reference answers after an operation must be
  answered by the agent alike. Those on absent keys may be woken early by the agent, as Consul does.
- Lock-delays are none or a minute, and nothing expires: time is no part of this test.

The seed is printed and can be given as CONSUL_COORD_SEED; Hypothesis shrinks what fails.
"""

from __future__ import annotations

import base64
import bisect
import contextlib
import http.client
import itertools
import json
import os
import random
import re
import socket
import sys
import time
import uuid
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from consul_coord.server.service import Service
from consul_coord.server.state import ConsulState
from consul_coord.server.wire import Blocked, Reply, Request

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord.testing.agent import RealAgent

TIMEOUT = 20.0
WOKEN_WITHIN = 5.0
UNKNOWN = "11111111-2222-3333-4444-555555555555"
INDEX_FIELDS = frozenset({"CreateIndex", "ModifyIndex"})
INDEX_IN_TEXT = re.compile(r"(?<=current modify index )\d+")

VERBS = (
    *("set", "cas", "lock", "unlock", "delete", "delete-cas", "delete-tree"),
    *("get", "get-tree", "check-index", "check-session", "check-session", "check-not-exists"),
)
KEYS = st.sampled_from(["a", "b", "d/", "d/a", "d/b", "d", "é x"])
PREFIXES = st.sampled_from(["", "d", "d/", "a", "none"])
VALUES = st.sampled_from([b"", b"1", b"two", b"\x00\xff"])
FLAGS = st.sampled_from(["", "flags=0&", "flags=7&", "flags=18446744073709551615&"])
PICKS = st.integers(0, 7)
DELAYS = st.sampled_from(["0s", "60s"])


@dataclass
class Indexes:
    """Which index of the agent belongs to which of the reference; grows in order, or something is wrong."""

    pairs: list[tuple[int, int]] = field(default_factory=list)

    def match(self, ours: int, theirs: int) -> None:
        position = bisect.bisect_left(self.pairs, (ours, -1))
        at = self.pairs[position : position + 1]
        if at and at[0][0] == ours:
            assert at[0][1] == theirs, f"index {ours} was {at[0][1]} and is {theirs} now; pairs {self.pairs}"
            return
        before, after = self.pairs[:position][-1:], at
        assert not before or before[0][1] < theirs, f"{ours}:{theirs} is not above {before}"
        assert not after or theirs < after[0][1], f"{ours}:{theirs} is not below {after}"
        self.pairs.insert(position, (ours, theirs))

    def pick(self, number: int) -> tuple[int, int]:
        """Return one of the latest pairs, or (1, 1), an index that nothing has."""
        return self.pairs[-1 - number] if number < len(self.pairs) else (1, 1)


@dataclass
class Watch:
    """A blocking query in flight on both sides."""

    ticket: int
    theirs: Future[Answer]
    path: str
    index: int  # what the reference was asked with
    absent: bool


@dataclass(frozen=True)
class Answer:
    """What counts of a reply."""

    status: int
    body: Any
    index: int | None


class Agent:
    """The real side: one connection for calls, one each for blocking queries."""

    def __init__(self, address: str) -> None:
        self._place = address.removeprefix("http://")
        self._connection = http.client.HTTPConnection(self._place, timeout=TIMEOUT)
        self._watching: set[http.client.HTTPConnection] = set()

    def ask(self, method: str, target: str, body: bytes) -> Answer:
        self._connection.request(method, target, body)
        return self._read(self._connection)

    def watch(self, target: str, pool: ThreadPoolExecutor) -> Future[Answer]:
        """Send a blocking query at once, and let the pool wait for its reply."""
        connection = http.client.HTTPConnection(self._place, timeout=TIMEOUT)
        connection.request("GET", target)
        self._watching.add(connection)
        return pool.submit(self._reply_to, connection)

    def _reply_to(self, connection: http.client.HTTPConnection) -> Answer:
        try:
            return self._read(connection)
        finally:
            self._watching.discard(connection)
            connection.close()

    def close(self) -> None:
        """End everything, blocking queries in flight included."""
        self._connection.close()
        for connection in list(self._watching):
            with contextlib.suppress(OSError):  # it may end by itself at this moment
                connection.sock.shutdown(socket.SHUT_RDWR)

    @staticmethod
    def _read(connection: http.client.HTTPConnection) -> Answer:
        with connection.getresponse() as reply:
            return read(reply.status, reply.read(), reply.headers["X-Consul-Index"])


def read(status: int, body: bytes, index: str | None) -> Answer:
    try:
        value = json.loads(body)
    except ValueError:
        value = body.decode()
    return Answer(status, value, int(index) if index else None)


class Machine(RuleBasedStateMachine):
    """Both sides, and the rules that drive them."""

    address: ClassVar[str]
    operations: ClassVar[int] = 0
    woken: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.prefix = f"diff/{uuid.uuid4().hex[:8]}/"
        self.node = f"diff-{uuid.uuid4().hex[:8]}"
        self.agent = Agent(self.address)
        self.pool = ThreadPoolExecutor(max_workers=64)
        self.next_id = UNKNOWN
        state = ConsulState(now=0.0, new_id=lambda: self.next_id)
        self.service = Service(state, random=lambda: 0.0)
        self.indexes = Indexes()
        self.sessions: list[str] = []
        self.watches: list[Watch] = []

    @initialize()
    def same_start(self) -> None:
        """Write once to every table, so that no index older than this run is seen."""
        self.both("PUT", f"/v1/kv/{self.prefix}first", b"x")
        self.both("DELETE", f"/v1/kv/{self.prefix}first")
        self.register("passing")
        self.create_session("release", "0s", checked=False)
        self.create_query(0, "")
        self.both("GET", f"/v1/kv/{self.prefix}first")

    # What both are asked

    @rule(behavior=st.sampled_from(["release", "delete"]), delay=DELAYS, checked=st.booleans())
    def create_session(self, behavior: str, delay: str, *, checked: bool) -> None:
        checks: dict[str, object] = (
            {"NodeChecks": ["c1"], "ServiceChecks": [{"ID": "c2"}]} if checked else {"NodeChecks": []}
        )
        body = {"Behavior": behavior, "LockDelay": delay, "Node": self.node, **checks}
        answer = self.both("PUT", "/v1/session/create", json.dumps(body).encode())
        if answer.status == 200:
            self.sessions.append(answer.body["ID"])

    @rule(pick=PICKS)
    def destroy_session(self, pick: int) -> None:
        self.both("PUT", f"/v1/session/destroy/{self.session(pick)}")

    @rule(pick=PICKS)
    def look_at_sessions(self, pick: int) -> None:
        self.both("PUT", f"/v1/session/renew/{self.session(pick)}")
        self.both("GET", f"/v1/session/info/{self.session(pick)}")
        self.both("GET", f"/v1/session/node/{self.node}")

    @rule(key=KEYS, value=VALUES, flags=FLAGS)
    def put(self, key: str, value: bytes, flags: str) -> None:
        self.both("PUT", f"{self.path(key)}?{flags}", value)

    @rule(key=KEYS, value=VALUES, flags=FLAGS, pick=PICKS)
    def put_cas(self, key: str, value: bytes, flags: str, pick: int) -> None:
        self.with_index(pick, lambda index: ("PUT", f"{self.path(key)}?{flags}cas={index}", value))

    @rule(key=KEYS, value=VALUES, flags=FLAGS, pick=PICKS, verb=st.sampled_from(["acquire", "release"]))
    def lock(self, key: str, value: bytes, flags: str, pick: int, verb: str) -> None:
        self.both("PUT", f"{self.path(key)}?{flags}{verb}={self.session(pick)}", value)

    @rule(key=KEYS)
    def delete(self, key: str) -> None:
        self.both("DELETE", self.path(key))

    @rule(key=KEYS, pick=PICKS)
    def delete_cas(self, key: str, pick: int) -> None:
        self.with_index(pick, lambda index: ("DELETE", f"{self.path(key)}?cas={index}", b""))

    @rule(prefix=PREFIXES)
    def delete_tree(self, prefix: str) -> None:
        self.both("DELETE", f"{self.path(prefix)}?recurse")

    @rule(key=KEYS, prefix=PREFIXES)
    def look_at_keys(self, key: str, prefix: str) -> None:
        self.both("GET", self.path(key))
        self.both("GET", f"{self.path(prefix)}?recurse")
        self.both("GET", f"{self.path(prefix)}?keys&separator=/")

    @rule(ops=st.lists(st.tuples(st.integers(0, 12), KEYS, VALUES, PICKS), min_size=1, max_size=6))
    def txn(self, ops: list[tuple[int, str, bytes, int]]) -> None:
        ours, theirs = zip(*(self.op(*op) for op in ops), strict=True)
        self.compare("PUT", "/v1/txn", json.dumps(theirs).encode(), "/v1/txn", json.dumps(ours).encode())

    @rule(status=st.sampled_from(["passing", "passing", "warning", "critical"]), port=st.integers(80, 81))
    def register(self, status: str, port: int = 80) -> None:
        body = {
            "Node": self.node,
            "Address": "10.0.0.2",
            "Service": {"Service": "web", "Port": port},
            "Checks": [
                {"CheckID": "c1", "Name": "c1", "Status": status},
                {"CheckID": "c2", "Name": "c2", "Status": "passing", "ServiceID": "web"},
            ],
        }
        self.both("PUT", "/v1/catalog/register", json.dumps(body).encode())

    @rule(check=st.sampled_from(["c1", "c2"]), status=st.sampled_from(["passing", "warning", "critical"]))
    def register_check(self, check: str, status: str) -> None:
        registered = {"CheckID": check, "Status": status, "ServiceID": "web" if check == "c2" else ""}
        body = {"Node": self.node, "SkipNodeUpdate": True, "Check": registered}
        self.both("PUT", "/v1/catalog/register", json.dumps(body).encode())

    @rule(pick=PICKS, name=st.sampled_from(["", "q1", "q2"]))
    def create_query(self, pick: int, name: str) -> None:
        named = {"Name": f"{self.prefix}{name}"} if name else {}
        body = {**named, "Session": self.session(pick), "Service": {"Service": "web"}}
        self.both("POST", "/v1/query", json.dumps(body).encode())
        self.both("GET", "/v1/query")

    @rule(what=st.sampled_from([{}, {"CheckID": "c1"}, {"CheckID": "c2"}, {"ServiceID": "web"}]))
    def deregister(self, what: dict[str, str]) -> None:
        self.both("PUT", "/v1/catalog/deregister", json.dumps({"Node": self.node, **what}).encode())

    @rule()
    def look_at_node(self) -> None:
        self.both("GET", f"/v1/health/node/{self.node}")
        self.both("GET", f"/v1/catalog/node/{self.node}")

    @rule(
        kind=st.sampled_from(["key", "tree", "keys", "session", "node", "health"]),
        key=KEYS,
        prefix=PREFIXES,
        pick=PICKS,
    )
    def watch(self, kind: str, key: str, prefix: str, pick: int) -> None:
        """Start a blocking query with the index just read, so that it waits on both sides."""
        path = {
            "key": f"{self.path(key)}?",
            "tree": f"{self.path(prefix)}?recurse&",
            "keys": f"{self.path(prefix)}?keys&",
            "session": f"/v1/session/info/{self.session(pick)}?",
            "node": f"/v1/session/node/{self.node}?",
            "health": f"/v1/health/node/{self.node}?",
        }[kind]
        if len(self.watches) >= 16:
            return
        theirs = self.both("GET", path)
        ours = self.ask(Request.make("GET", path))
        assert isinstance(ours, Answer)
        assert ours.index is not None
        waiting = self.ask(Request.make("GET", f"{path}index={ours.index}&wait=10m"))
        if not isinstance(waiting, Blocked):
            return
        future = self.agent.watch(f"{path}index={theirs.index}&wait=10s", self.pool)
        # An absent thing hangs on its surroundings in Consul's trees: its watch may end early.
        self.watches.append(Watch(waiting.ticket, future, path, ours.index, is_nothing(theirs)))

    def teardown(self) -> None:
        for session in self.sessions:
            self.both("PUT", f"/v1/session/destroy/{session}")
        self.both("PUT", "/v1/catalog/deregister", json.dumps({"Node": self.node}).encode())
        self.both("DELETE", f"/v1/kv/{self.prefix}?recurse")
        self.agent.close()
        self.pool.shutdown()

    # How they are asked

    def path(self, key: str) -> str:
        return f"/v1/kv/{quote(self.prefix + key)}"

    def session(self, pick: int) -> str:
        return self.sessions[-1 - pick] if pick < len(self.sessions) else UNKNOWN

    def op(self, number: int, key: str, value: bytes, pick: int) -> tuple[dict[str, Any], dict[str, Any]]:
        verb = VERBS[number]
        index = (0, 0) if pick == 7 else self.indexes.pick(pick)
        session = "" if verb == "check-session" and pick == 6 else self.session(pick)
        kv = {
            "Verb": verb,
            "Key": self.prefix + key,
            "Value": base64.b64encode(value).decode(),
            "Flags": pick,
        }
        if "lock" in verb or "session" in verb:
            kv["Session"] = session
        ours, theirs = ({"KV": {**kv, "Index": side}} for side in index)
        return ours, theirs

    def with_index(self, pick: int, call: Callable[[int], tuple[str, str, bytes]]) -> None:
        ours, theirs = (0, 0) if pick == 7 else self.indexes.pick(pick)
        method, our_path, body = call(ours)
        self.compare(method, call(theirs)[1], body, our_path, body)

    def both(self, method: str, path: str, body: bytes = b"") -> Answer:
        return self.compare(method, path, body, path, body)

    def compare(
        self, method: str, their_path: str, their_body: bytes, our_path: str, our_body: bytes
    ) -> Answer:
        type(self).operations += 1
        theirs = self.agent.ask(method, their_path, their_body)
        made = theirs.body.get("ID") if isinstance(theirs.body, dict) else None
        self.next_id = made or str(uuid.uuid4())
        ours = self.ask(Request.make(method, our_path, our_body))
        assert isinstance(ours, Answer), f"{our_path} blocks"
        self.same(f"{method} {our_path} {our_body!r}", ours, theirs)
        self.collect()
        return theirs

    def ask(self, request: Request) -> Answer | Blocked:
        outcome = self.service.handle(request, 0.0)
        return outcome if isinstance(outcome, Blocked) else answer(outcome)

    def collect(self) -> None:
        """Compare the blocking queries that the reference has just answered.

        Forget those that ended early.
        """
        ready = dict(self.service.ready())
        for watch in list(self.watches):
            if watch.ticket in ready:
                self.watches.remove(watch)
                ours, theirs = answer(ready[watch.ticket]), watch.theirs.result(WOKEN_WITHIN)
                if not (watch.absent and is_nothing(theirs)):  # else it was woken early, before the change
                    self.same(f"watch {watch.path}", ours, theirs)
                    type(self).woken += 1
            elif watch.theirs.done():
                self.watches.remove(watch)
                self.service.cancel(watch.ticket)
                assert watch.absent or self.came_late(watch), (
                    f"the agent woke {watch.path}: {watch.theirs.result()}"
                )

    def came_late(self, watch: Watch) -> bool:
        """Tell whether the agent may have seen a watch only after its index had moved."""
        now = self.ask(Request.make("GET", watch.path))
        assert isinstance(now, Answer)
        return now.index is not None and now.index > watch.index

    def same(self, what: str, ours: Answer, theirs: Answer) -> None:
        assert ours.status == theirs.status, f"{what}: {ours} and not {theirs}"
        assert (ours.index is None) == (theirs.index is None), f"{what}: {ours} and not {theirs}"
        assert self.level(ours.body, theirs.body) == theirs.body, f"{what}: {ours} and not {theirs}"
        if ours.index is not None and theirs.index is not None:
            self.indexes.match(ours.index, theirs.index)

    def level(self, ours: Any, theirs: Any) -> Any:
        """Return our body with its indexes, once they are found to match, replaced by theirs."""
        if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
            return [self.level(a, b) for a, b in zip(ours, theirs, strict=True)]
        if isinstance(ours, dict) and isinstance(theirs, dict) and list(ours) == list(theirs):
            return {name: self.level_field(name, ours[name], theirs[name]) for name in ours}
        if isinstance(ours, str) and isinstance(theirs, str):
            for a, b in zip(INDEX_IN_TEXT.findall(ours), INDEX_IN_TEXT.findall(theirs), strict=False):
                self.indexes.match(int(a), int(b))
            # The number that was asked for differs as well; both were made from one pair.
            return theirs if strip_indexes(ours) == strip_indexes(theirs) else ours
        return ours

    def level_field(self, name: str, ours: Any, theirs: Any) -> Any:
        if name in INDEX_FIELDS:
            self.indexes.match(ours, theirs)
            return theirs
        return self.level(ours, theirs)


def is_nothing(answer: Answer) -> bool:
    """Tell whether a reply shows nothing: a 404 or an empty list."""
    return not answer.body


def strip_indexes(text: str) -> str:
    return re.sub(r"(?<=current modify index )\d+ != \d+", "", text)


def answer(reply: Reply) -> Answer:
    return read(reply.status, reply.body, reply.header("X-Consul-Index"))


def wait_until_quiet(address: str) -> None:
    """Wait until the agent has written its own node to the catalog, which moves indexes that are compared."""
    agent = Agent(address)
    deadline = time.monotonic() + TIMEOUT
    while any(node["TaggedAddresses"] is None for node in agent.ask("GET", "/v1/catalog/nodes", b"").body):
        assert time.monotonic() < deadline, "the agent does not register its node"
        time.sleep(0.05)
    agent.close()


def run(address: str, at_least: int) -> None:
    """Run the machine until both sides have answered so many operations."""
    seed = int(os.environ.get("CONSUL_COORD_SEED") or random.randrange(2**32))
    sys.stdout.write(f"CONSUL_COORD_SEED={seed}\n")
    wait_until_quiet(address)
    settings = hypothesis.settings(
        max_examples=100,
        stateful_step_count=50,
        deadline=None,
        database=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large],
        print_blob=True,
    )
    Machine.address, Machine.operations, Machine.woken = address, 0, 0
    for batch in itertools.count(seed):
        run_state_machine_as_test(hypothesis.seed(batch)(Machine), settings=settings)
        if Machine.operations >= at_least:
            break
    sys.stdout.write(f"{Machine.operations} operations, {Machine.woken} blocking queries woken\n")
    assert Machine.woken > at_least / 1_000


# Long, because an agent under load writes on its own now and then (an index that nobody here asked for), and
# a comparison that fails for that says nothing; on a quiet machine it runs in 15 s.
@pytest.mark.long
@pytest.mark.timeout(600)
def test_random_operations(real_agent: RealAgent) -> None:
    run(real_agent.address, 10_000)


@pytest.mark.long
@pytest.mark.timeout(7_200)
def test_many_random_operations(real_agent: RealAgent) -> None:
    run(real_agent.address, 200_000)
