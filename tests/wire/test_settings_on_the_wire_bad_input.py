"""Bad input is refused with an error that names it, before anything is sent."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord.errors import InvalidArgument, InvalidKey, UnsafeSession, ValueTooLarge
from consul_coord.models import (
    CheckSpec,
    PreparedQuery,
    ReadOptions,
    Registration,
    SessionSpec,
    TxnOp,
)
from tests.wire.agents import told

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.wire.agents import ScriptedAgent
    from tests.wire.clients import Make

    Use = Callable[[Make, Any, Any], object]
    """Uses an input: gets what makes locks, a client, and the input."""

pytest_plugins = ["tests.wire.scripted"]
pytestmark = pytest.mark.timeout(20)

SID = "adf4238a-882b-9ddc-4a9d-5b6758e4159e"
LIMIT = 512 * 1024

BAD_KEYS = ["/lead", "a//b", ".", "..", "a/./b", "a/../b", "../session", "a\nb", "a\x00", "a\u200bb"]
KEY_USES: dict[str, Use] = {
    "get": lambda _, c, key: c.kv.get(key),
    "get_raw": lambda _, c, key: c.kv.get_raw(key),
    "list": lambda _, c, key: c.kv.list(key),
    "keys": lambda _, c, key: c.kv.keys(key),
    "put": lambda _, c, key: c.kv.put(key, b"v"),
    "delete": lambda _, c, key: c.kv.delete(key),
    "delete_tree": lambda _, c, key: c.kv.delete_tree(key),
    "acquire": lambda _, c, key: c.kv.acquire(key, SID),
    "release": lambda _, c, key: c.kv.release(key, SID),
    "watch": lambda _, c, key: next(c.kv.watch(key)),
    "txn": lambda _, c, key: c.txn(TxnOp.get("fine"), TxnOp.lock(key, SID)),
    "txn tree": lambda _, c, key: c.txn(TxnOp.get_tree(key)),
    "lock": lambda make, c, key: make.lock(c, key),
}


def test_keys(make: Make, scripted: ScriptedAgent) -> None:
    client = make.client()
    for name, use in KEY_USES.items():
        for key in BAD_KEYS:
            with pytest.raises(InvalidKey) as raised:
                use(make, client, key)
            assert raised.value.key == key, name
            assert str(raised.value).isprintable()
        for odd in (b"bytes", 5, None, "\ud800"):
            with pytest.raises(InvalidArgument):
                use(make, client, odd)
    assert scripted.requests == []


VALUE_USES: dict[str, Use] = {
    "put": lambda _, c, value: c.kv.put("k", value),
    "acquire": lambda _, c, value: c.kv.acquire("k", SID, value=value),
    "release": lambda _, c, value: c.kv.release("k", SID, value=value),
    "txn": lambda _, c, value: c.txn(TxnOp.set("k", value)),
    "txn in parts": lambda _, c, value: c.txn(*[TxnOp.set("k", value[: LIMIT // 2])] * 2),
}


def test_values(make: Make, scripted: ScriptedAgent) -> None:
    client = make.client()
    for name, use in VALUE_USES.items():
        for value in (b"v" * (LIMIT + 1), "é" * (LIMIT // 2 + 1)):
            with pytest.raises(ValueTooLarge) as raised:
                use(make, client, value)
            assert raised.value.size > raised.value.limit, name
            assert len(str(raised.value)) < 200
    for odd in (5, None, ["v"], "\ud800"):
        with pytest.raises(InvalidArgument):
            client.kv.put("k", odd)
    assert scripted.requests == []


def test_the_value_of_a_lock(make: Make, scripted: ScriptedAgent) -> None:
    scripted.answer = lambda seen: told(
        {"ID": SID} if "session" in seen.path else {"Results": [], "Errors": None}
    )
    with pytest.raises(ValueTooLarge):
        make.lock(make.client(), "k", value=b"v" * (LIMIT + 1)).acquire(timeout=1)
    assert scripted.requests == []


BAD_IDS = ["", "../kv/x", "a//b", "a\nb", "/", None, 5]
ID_USES: dict[str, Use] = {
    "destroy": lambda _, c, id: c.session.destroy(id),
    "renew": lambda _, c, id: c.session.renew(id),
    "info": lambda _, c, id: c.session.info(id),
    "node": lambda _, c, id: c.session.node(id),
    "watch": lambda _, c, id: next(c.session.watch(id)),
    "acquire": lambda _, c, id: c.kv.acquire("k", id),
    "release": lambda _, c, id: c.kv.release("k", id),
    "query": lambda _, c, id: c.query.get(id),
    "check": lambda _, c, id: c.agent.pass_check(id),
    "catalog": lambda _, c, id: c.catalog.node(id),
    "deregister": lambda _, c, id: c.catalog.deregister(id),
    "health": lambda _, c, id: c.health.node(id),
}


def test_ids_and_names(make: Make, scripted: ScriptedAgent) -> None:
    client = make.client()
    for use in ID_USES.values():
        for bad in BAD_IDS:
            with pytest.raises(InvalidArgument):
                use(make, client, bad)
    assert scripted.requests == []


@pytest.mark.parametrize("bad", ["", "../kv/x", "a\nb"])
def test_the_session_given_to_a_lock(make: Make, scripted: ScriptedAgent, bad: str) -> None:
    with pytest.raises(InvalidArgument):
        make.lock(make.client(), "k", session=bad).acquire(timeout=1)
    assert scripted.requests == []


BAD_TTLS: tuple[Any, ...] = (0, -1, 86_401, math.inf, math.nan, "15s", True)
BAD_DELAYS: tuple[Any, ...] = (-1, 60.1, math.inf, math.nan, "5s", 1e-9)
BAD_SPECS: dict[str, Callable[[], object]] = {
    **{f"ttl {bad!r}": partial(SessionSpec, ttl=bad) for bad in BAD_TTLS},
    **{f"lock_delay {bad!r}": partial(SessionSpec, lock_delay=bad) for bad in BAD_DELAYS},
    "behavior": lambda: SessionSpec(behavior="RELEASE"),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    "node": lambda: SessionSpec(node=""),
    "checks": lambda: SessionSpec(node_checks="serfHealth"),
    "drift": lambda: SessionSpec(drift=1),
    "unbounded": lambda: SessionSpec(ttl=None),
    "unbounded checks": lambda: SessionSpec.liveness(lock_delay=0),
}


def test_sessions() -> None:
    for make_spec in BAD_SPECS.values():
        with pytest.raises((InvalidArgument, UnsafeSession)):
            make_spec()


OTHER_USES: dict[str, Use] = {
    "flags too large": lambda _, c, __: c.kv.put("k", b"", flags=2**64),
    "negative cas": lambda _, c, __: c.kv.put("k", b"", cas=-1),
    "negative cas of a delete": lambda _, c, __: c.kv.delete("k", cas=-1),
    "no operations": lambda _, c, __: c.txn(),
    "too many operations": lambda _, c, __: c.txn(*[TxnOp.get("k")] * 65),
    "a blocking txn": lambda _, c, __: c.txn(TxnOp.get("k"), options=ReadOptions(index=5)),
    "wait": lambda _, c, __: c.kv.get("k", options=ReadOptions(index=1, wait=0)),
    "consistency": lambda _, c, __: c.kv.get("k", options=ReadOptions(consistency="fresh")),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    "status": lambda _, c, __: c.agent.update_check("c", "bogus"),
    "state": lambda _, c, __: c.health.state(""),
    "check": lambda _, c, __: c.agent.register_check(CheckSpec(name="c")),
    "registration": lambda _, c, __: c.catalog.register(Registration(node="", address="a")),
    "tags": lambda _, c, __: c.query.create(PreparedQuery(service="s", tags="ab")),
}


def test_other_arguments(make: Make, scripted: ScriptedAgent) -> None:
    client = make.client()
    for use in OTHER_USES.values():
        with pytest.raises(InvalidArgument):
            use(make, client, None)
    assert scripted.requests == []
