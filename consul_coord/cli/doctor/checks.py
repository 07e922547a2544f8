"""The checks of ``doctor``, one function each, in the order of ``_CHECKS``.

Rules
- A *fault* keeps locks from working; a *warning* costs something, or can't be seen with this token.
- Nothing that others use is changed: a permission to write is tried by a transaction that carries a condition
  which can't be met, as permissions are judged before conditions. Where something has to be written after
  all, its name is one that no client takes for its own, and it is gone at the end.
- A missing rule is printed as an ACL policy.
"""

from __future__ import annotations

import json
import re
import sys
import time
import uuid
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from consul_coord import (
    LOCK_FLAGS,
    SEMAPHORE_FLAGS,
    Client,
    ConsulCoordError,
    InvalidRequest,
    PermissionDenied,
    SessionSpec,
    SystemClock,
    TxnFailed,
    TxnOp,
    failover_bound,
)
from consul_coord.base_client import require
from consul_coord.http.endpoints._keys import check_parent
from consul_coord.http.failures import blocked_by, failure, next_step, printable
from consul_coord.http.messages import Call, Request, Retry
from consul_coord.recipes.contend import queue as waitqueue
from consul_coord.recipes.semaphore import slots

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from consul_coord import AgentInfo
    from consul_coord.http.messages import Response

Kind = Literal["lock", "semaphore"]
Status = Literal["ok", "warning", "fault"]

OLDEST = (1, 8)
"""The oldest release that is tested against."""
_OK = 200
_NEVER = 2**63 - 1
"""An index that no key has."""
_TINY = SessionSpec(ttl=1e-6, lock_delay=0.0, name="consul-coord doctor", allow_unbounded=True)
_TTL_RANGE = re.compile(r"between \[([^=\]]+)=([^\]]+)\]")
_SUSPEND_AWARE = {"linux": "CLOCK_BOOTTIME", "darwin": "CLOCK_MONOTONIC"}
_VERSION = re.compile(r"(\d+)\.(\d+)")


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    what: str
    status: Status
    text: str
    rules: tuple[str, ...] = ()
    """The rules that the token's policies lack."""


@dataclass(slots=True)
class Examination:
    """The subject of the checks, and the facts found so far."""

    client: Client
    key: str | None = None
    kind: Kind | None = None
    spec: SessionSpec = field(
        default_factory=lambda: SessionSpec(
            behavior="delete", lock_delay=0.0, name="consul-coord doctor", allow_unbounded=True
        )
    )
    """Of a session with which a key goes that could not be deleted."""
    agent: AgentInfo | None = None
    session: str | None = None
    limits: dict[str, Any] = field(default_factory=dict[str, Any])
    """The agent's settings, where they may be read."""


class _Hopeless(Exception):
    """Nothing that comes after can be looked at."""


def examine(case: Examination) -> Iterator[Finding]:
    """Yield what is found, and leave nothing behind. Raises InvalidKey for a name that a lock can't have."""
    if case.key is not None:
        check_parent(case.key)
    try:
        for check in _CHECKS:
            yield from check(case)
    except _Hopeless:
        pass
    finally:
        if case.session is not None:
            with suppress(ConsulCoordError):
                case.client.session.destroy(case.session)


# -- the agent and its servers


def _answers(case: Examination) -> Iterator[Finding]:
    """Ask whether anybody is there, and leads; without, all else would only say so again."""
    started = time.monotonic()
    try:
        leader = case.client.status.leader()
    except PermissionDenied as error:
        yield Finding("token", "fault", str(error))
        raise _Hopeless from error
    except ConsulCoordError as error:
        yield Finding("agent", "fault", f"{error}{next_step(error)}")
        raise _Hopeless from error
    took = (time.monotonic() - started) * 1000
    yield Finding("agent", "ok", f"the agent at {_address(case.client)} answered in {took:.1f} ms")
    if not leader:
        yield Finding(
            "leader",
            "fault",
            "the Consul servers have no leader: nobody can lock anything until they elect one",
        )
        raise _Hopeless
    yield Finding("leader", "ok", f"the leader of the Consul servers is {leader}")


def _address(client: Client) -> str:
    return require(client, Client, "doctor").serving


def _others(case: Examination) -> Iterator[Finding]:
    """Look at the agents that requests would go to if this one failed."""
    for address, problem in require(case.client, Client, "doctor").verify_agents().items():
        if problem:
            yield Finding("agents", "fault", problem)
        else:
            yield Finding("agents", "ok", f"the agent at {address} belongs to the same cluster")


def _token(case: Examination) -> Iterator[Finding]:
    """Ask for nothing: an unknown token is refused whatever is asked."""
    try:
        case.client.session.info(str(uuid.UUID(int=0)))
    except PermissionDenied as error:
        yield Finding("token", "fault", str(error))
        raise _Hopeless from error
    yield Finding("token", "ok", "Consul knows the token, or needs none")


def _version(case: Examination) -> Iterator[Finding]:
    try:
        case.agent = case.client.agent.info().value
    except PermissionDenied:
        text = "the agent's version, name and limits can't be seen; nothing depends on it"
        yield Finding("version", "warning", text, ('agent_prefix "" { policy = "read" }',))
        return
    case.limits = require(case.client, Client, "doctor").perform(_SELF)
    agent = case.agent
    role = "server" if agent.server else "client agent"
    text = f"Consul {agent.version}, {role} {agent.node}, datacenter {agent.datacenter}"
    found = _VERSION.match(agent.version)
    if found is not None and (int(found[1]), int(found[2])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        yield Finding("version", "warning", f"{text}: older than {oldest}, and not tested with")
    else:
        yield Finding("version", "ok", text)


def _settings(response: Response) -> dict[str, Any]:
    if response.status != _OK:
        raise failure(_SELF.request, response)
    try:
        settings: Any = json.loads(response.body)["DebugConfig"]
    except (ValueError, LookupError, TypeError):
        return {}  # some agents show none
    return cast("dict[str, Any]", settings) if isinstance(settings, dict) else {}


_SELF: Call[dict[str, Any]] = Call(Request("GET", "/v1/agent/self", retry=Retry.READ), _settings)


# -- sessions


def _session(case: Examination) -> Iterator[Finding]:
    node = f'session "{case.agent.node}"' if case.agent else 'session_prefix ""'
    try:
        case.session = case.client.session.create(case.spec)
    except PermissionDenied as error:
        text = "no session can be made, and without one nothing can be locked"
        if blocked := blocked_by(error.body):
            yield Finding("session", "fault", f"{text}: {blocked}")
        else:
            text += f"; add this rule and run doctor again, to try {case.key}" if case.key else ""
            yield Finding("session", "fault", text, (f'{node} {{ policy = "write" }}',))
        return
    except ConsulCoordError as error:
        yield Finding("session", "fault", f"no session can be made: {error}")
        return
    if case.client.session.info(case.session).value is None:
        text = (
            "the token may make sessions, but not read them: their loss is noticed only at the next renewal"
        )
        yield Finding("session", "warning", text, (f'{node} {{ policy = "read" }}',))
        return
    yield Finding("session", "ok", "the token may make, renew and read sessions")


def _ttl(case: Examination) -> Iterator[Finding]:
    """Ask for a TTL that no server takes: the refusal tells which it does."""
    if case.session is None:
        return
    try:
        case.client.session.destroy(case.client.session.create(_TINY))
    except InvalidRequest as error:
        found = _TTL_RANGE.search(error.body)
        if found is not None:
            text = f"the servers take {found[1]} to {found[2]} (session_ttl_min sets the minimum)"
            yield Finding("ttl", "ok", text)
            return
    yield Finding("ttl", "warning", "the servers do not say which TTLs they take")


def _health(case: Examination) -> Iterator[Finding]:
    """Look whether sessions could have checks."""
    none = "sessions have no health checks unless asked for (SessionSpec.liveness)"
    if case.agent is None:
        return
    checks = {check.id: check.status for check in case.client.health.node(case.agent.node).value}
    serf = checks.get("serfHealth")
    if serf is None:
        yield Finding("checks", "warning", f"{none}, and serfHealth of {case.agent.node} can't be seen")
    elif serf == "critical":
        text = f"{none}; serfHealth of {case.agent.node} is critical, which would end sessions with it"
        yield Finding("checks", "warning", text)
    else:
        yield Finding("checks", "ok", f"{none}; serfHealth of {case.agent.node} is {serf}")


# -- the key


def _key(case: Examination) -> Iterator[Finding]:
    if case.key is None or case.session is None:
        return
    key = case.key
    try:
        pair = case.client.kv.get(key).value
        record = case.client.kv.get(slots.record_key(key)).value
    except PermissionDenied:
        pair = record = None  # told below, by what it takes to write
    is_semaphore = record is not None and record.flags == SEMAPHORE_FLAGS
    kind = case.kind or ("semaphore" if is_semaphore else "lock")
    used = _USED[kind](pair is not None and pair.flags != LOCK_FLAGS, record is not None and not is_semaphore)
    if used:
        yield Finding("key", "fault", f"{key} is used for something else, and can't be a {kind}")
        return
    yield from _PERMISSIONS[kind](case, key)


_USED: dict[Kind, Callable[[bool, bool], bool]] = {
    "lock": lambda key, _record: key,
    "semaphore": lambda _key, record: record,
}


def _lock_permissions(case: Examination, key: str) -> Iterator[Finding]:
    session = case.session or ""
    if _denied(case, TxnOp.check_index(key, _NEVER), TxnOp.lock(key, session, flags=LOCK_FLAGS)):
        text = f"the token may not lock {key}"
        rules = (_rule("key", key), _rule("key_prefix", waitqueue.directory(key)))
        yield Finding("key", "fault", text, rules)
        return
    with _tried(case, waitqueue.directory(key), LOCK_FLAGS) as permitted:
        if permitted:
            yield Finding("key", "ok", f"the token may lock {key} and join its wait queue")
        else:
            text = f"the token may lock {key}, but not join its wait queue: waiters get it in no order"
            yield Finding("key", "warning", text, (_rule("key_prefix", waitqueue.directory(key)),))


def _slot_permissions(case: Examination, prefix: str) -> Iterator[Finding]:
    record, directory = slots.record_key(prefix), slots.directory(prefix)
    impossible = (TxnOp.check_index(record, _NEVER), TxnOp.set(record, b"", flags=SEMAPHORE_FLAGS))
    refused = _denied(case, *impossible)
    with _tried(case, directory, SEMAPHORE_FLAGS) as permitted:
        if permitted and not refused:
            yield Finding("key", "ok", f"the token may use {prefix} as a semaphore")
        else:
            text = f"the token may not use {prefix} as a semaphore"
            yield Finding("key", "fault", text, (_rule("key_prefix", directory),))


_PERMISSIONS: dict[Kind, Callable[[Examination, str], Iterator[Finding]]] = {
    "lock": _lock_permissions,
    "semaphore": _slot_permissions,
}


def _denied(case: Examination, *impossible: TxnOp) -> bool:
    """Return whether the token may not do what, for other reasons, can't succeed."""
    try:
        case.client.txn(*impossible)
    except TxnFailed as error:
        return any(each.kind == "denied" for each in error.failures)
    except PermissionDenied:
        return True
    return False


@contextmanager
def _tried(case: Examination, directory: str, flags: int) -> Generator[bool]:
    """Lock a key of a directory, for the time of the block; gives whether that is permitted."""
    key = f"{directory}doctor-{uuid.uuid4()}"
    try:
        case.client.txn(TxnOp.lock(key, case.session or "", flags=flags))
    except TxnFailed:
        yield False
        return
    try:
        yield True
    finally:
        case.client.txn(TxnOp.delete(key))


def _rule(resource: str, name: str) -> str:
    return f'{resource} "{printable(name)}" {{ policy = "write" }}'


# -- this machine


def _clock(_case: Examination) -> Iterator[Finding]:
    """Compare the lease clock with one that goes on while the machine is suspended."""
    name = _SUSPEND_AWARE.get(sys.platform, "")
    clock = getattr(time, name, None)
    if clock is not None and abs(SystemClock().now() - time.clock_gettime(clock)) < 1:
        yield Finding("clock", "ok", f"leases are measured on {name}, which counts suspended time")
    else:
        text = "leases are measured on a clock that stops while this machine sleeps: it must not sleep"
        yield Finding("clock", "warning", text)


def _connections(case: Examination) -> Iterator[Finding]:
    """Look how many may wait: every waiting acquire, and every watch, keeps a connection busy."""
    limit = case.limits.get("HTTPMaxConnsPerClient")
    if not isinstance(limit, int):
        text = "how many connections the agent takes from one address can't be seen (200 unless changed)"
        yield Finding("connections", "warning" if case.agent is None else "ok", text)
        return
    text = f"the agent takes {limit or 'any number of'} connections from one address; each waiter needs one"
    rates = (
        f"; it lets {rate:g} {what} a second through"
        for name, what in _RATES
        if (rate := _rate(case.limits.get(name))) is not None
    )
    yield Finding("connections", "ok", text + "".join(rates))


_RATES: Final = (
    ("RPCRateLimit", "requests"),
    ("RequestLimitsReadRate", "reads"),
    ("RequestLimitsWriteRate", "writes"),
)
"""Consul's settings of how many requests it serves; the last two came with 1.15."""
_NO_LIMIT: Final = 1e300
"""Consul writes the largest float there is where it sets no limit."""


def _rate(value: object) -> float | None:
    limits = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < _NO_LIMIT
    return float(cast("float", value)) if limits else None


def _failover(_case: Examination) -> Iterator[Finding]:
    spec, longer = SessionSpec(), SessionSpec(ttl=60)
    text = (
        f"without contact to Consul a hold lasts {_lease(spec):g} s by the default settings: the smaller of "
        f"ttl and lock_delay, less {spec.drift:.0%}. A longer ttl alone does not change that (ttl=60: "
        f"{_lease(longer):g} s, not {(1 - longer.drift) * 60:g} s); SessionSpec(ttl=60, lock_delay=60) does"
    )
    yield Finding("lease", "ok", text)
    text = (
        f"when a holder dies, another client gets its lock within {failover_bound(spec):g} s by the default "
        f"settings: twice the TTL of {spec.ttl:g} s, the lock-delay, and 1 s"
    )
    yield Finding("failover", "ok", text)


def _lease(spec: SessionSpec) -> float:
    return (1 - spec.drift) * (spec.lease_horizon or 0.0)


_CHECKS: tuple[Callable[[Examination], Iterator[Finding]], ...] = (
    _answers,
    _others,
    _token,
    _version,
    _session,
    _ttl,
    _health,
    _key,
    _clock,
    _connections,
    _failover,
)
