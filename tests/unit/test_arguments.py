"""Calls refuse arguments that they can't use: by name, and before they send anything."""

from __future__ import annotations

import asyncio
import inspect
import re
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

import consul_coord as cc
from consul_coord.errors import InvalidArgument
from consul_coord.models import _validate
from tests.unit.test_times import NOBODY

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

SEQUENCER = cc.Sequencer("k", 1, "s")
USES: dict[str, tuple[str, Callable[[Any], object]]] = {
    "cancel of acquire": (
        "cancel must be an object with a method is_set(), or None, not bool",
        lambda client: cc.Lock(client, "k").acquire(cancel=True),  # type: ignore[arg-type]
    ),
    "cancel of a block": (
        "cancel must be an object with a method is_set(), or None, not bool",
        lambda client: cc.Semaphore(client, "k", 2).hold(cancel=True).__enter__(),  # type: ignore[arg-type]
    ),
    "an operation": (
        "operation 1 of a transaction must be a TxnOp, such as TxnOp.get(key) or *hold.guard(), not str",
        lambda client: client.txn("x"),
    ),
    "a list of operations": (
        "operation 2 of a transaction must be a TxnOp, such as TxnOp.get(key) or *hold.guard(), not list",
        lambda client: client.txn(cc.TxnOp.get("k"), [cc.TxnOp.get("k")]),
    ),
    "how": (
        "how must be one of 'release', 'destroy', not 'destory'",
        lambda client: cc.Lock(client, "k").break_lock("s", how="destory"),  # type: ignore[arg-type]
    ),
    "how of a side": (
        "how must be one of 'release', 'destroy', not ['destroy']",
        lambda client: cc.ReadWriteLock(client, "k").write.break_lock("s", how=["destroy"]),  # type: ignore[arg-type]
    ),
    "no session": (
        "expected_session must be the id of a session, such as holder().session, not NoneType",
        lambda client: cc.Lock(client, "k").break_lock(None),  # type: ignore[arg-type]
    ),
    "no session of several keys": (
        "expected_session must be the id of a session, such as holder().session, not bytes",
        lambda client: cc.MultiLock(client, ["k", "l"]).break_lock(b"s"),  # type: ignore[arg-type]
    ),
    "no session of a side": (
        "expected_session must be the id of a session, such as holder().session, not int",
        lambda client: cc.ReadWriteLock(client, "k").read.break_lock(5),  # type: ignore[arg-type]
    ),
    "options of a read": (
        "options must be of the class ReadOptions, not str",
        lambda client: client.kv.get("k", options="stale"),
    ),
    "options of a write": (
        "options must be of the class WriteOptions, not ReadOptions",
        lambda client: client.kv.put("k", "v", options=cc.ReadOptions()),
    ),
    "a place": (
        "datacenter must be a string, not int",
        lambda client: client.kv.put("k", "v", options=cc.WriteOptions(datacenter=5)),  # type: ignore[arg-type]
    ),
    "near": (
        "near must be a string, not int",
        lambda client: client.catalog.nodes(options=cc.ReadOptions(near=5)),  # type: ignore[arg-type]
    ),
    "a separator": (
        "separator must be a string, not int",
        lambda client: client.kv.keys("k", separator=5),
    ),
    "a session to be made": (
        "spec must be of the class SessionSpec, not str",
        lambda client: client.session.create("web"),
    ),
    "no session to be kept": (
        "spec must be of the class SessionSpec, not NoneType",
        lambda client: client.keep_session(None),
    ),
    "a session to go on with": (
        "resume must be a string, not bytes",
        lambda client: client.keep_session(cc.SessionSpec(), resume=b"consul-coord-session:1:x"),
    ),
    "sessions without a name": (
        "name must be a string, not NoneType",
        lambda client: client.session.named(None),
    ),
    "a check": (
        "spec must be of the class CheckSpec, not NoneType",
        lambda client: client.agent.register_check(None),
    ),
    "a service": (
        "service must be of the class Service, not str",
        lambda client: client.agent.register_service("web"),
    ),
    "a registration": (
        "registration must be of the class Registration, not NoneType",
        lambda client: client.catalog.register(None),
    ),
    "a query": (
        "query must be of the class PreparedQuery, not NoneType",
        lambda client: client.query.create(None),
    ),
    "a lock of no session": (
        "session must be a string, not NoneType",
        lambda client: client.txn(cc.TxnOp.lock("k", None)),  # type: ignore[arg-type]
    ),
    "a write at no index": (
        "index must be an integer from 0 to 2**64 - 1, not None",
        lambda client: client.txn(cc.TxnOp.cas("k", "v", None)),  # type: ignore[arg-type]
    ),
    "a list for a key": (
        "a key must be a string, not list",
        lambda client: cc.MultiLock(client, [["k"]]),  # type: ignore[list-item]
    ),
    "a check's URL": (
        "http must be a string, not bytes",
        lambda _client: cc.CheckSpec(name="up", http=b"http://h", interval=5.0),  # type: ignore[arg-type]
    ),
    "a check of a service": (
        "checks[0] must be of the class CheckSpec, not str",
        lambda client: client.agent.register_service(cc.Service("web"), checks=["up"]),
    ),
    "no list of checks": (
        "checks must be a collection of HealthCheck, not int",
        lambda _client: cc.Registration(node="n", address="a", checks=5),  # type: ignore[arg-type]
    ),
    "a check of a node": (
        "checks[0] must be of the class HealthCheck, not str",
        lambda _client: cc.Registration(node="n", address="a", checks=["up"]),  # type: ignore[list-item]
    ),
    "a service of a node": (
        "service must be of the class Service, not str",
        lambda _client: cc.Registration(node="n", address="a", service="web"),  # type: ignore[arg-type]
    ),
    "where to register": (
        "options must be of the class WriteOptions, not str",
        lambda client: client.catalog.register(cc.Registration(node="n", address="a"), options="dc1"),
    ),
    "where to transact": (
        "options must be of the class WriteOptions, not str",
        lambda client: client.txn(cc.TxnOp.get("k"), options="dc1"),
    ),
    "meta that is a list": (
        "meta must be a mapping of strings to strings, not list",
        lambda _client: cc.Service("web", meta=[("a", "b")]),  # type: ignore[arg-type]
    ),
    "a number in meta": (
        "meta['rack'] must be a string, not int",
        lambda _client: cc.Service("web", meta={"rack": 5}),  # type: ignore[dict-item]
    ),
    "a number for a name in meta": (
        "a name in node_meta must be a string, not int",
        lambda _client: cc.Registration(node="n", address="a", node_meta={5: "a"}),  # type: ignore[dict-item]
    ),
    "bytes for a service": (
        "name must be a string, not bytes",
        lambda _client: cc.Service(b"web"),  # type: ignore[arg-type]
    ),
    "bytes for a query's service": (
        "service must be a string, not bytes",
        lambda _client: cc.PreparedQuery(service=b"web"),  # type: ignore[arg-type]
    ),
    "a verb in a list": (
        "verb must be one of 'set', 'cas', ",
        lambda _client: cc.TxnOp(["set"], "k"),  # type: ignore[arg-type]
    ),
    "an unknown verb": (
        "verb must be one of 'set', 'cas', ",
        lambda _client: cc.TxnOp("put", "k"),  # type: ignore[arg-type]
    ),
    "no function": (
        "fn must be a function, not NoneType",
        lambda client: client.kv.update("k", None),
    ),
    "no period of this world": (
        "at must be seconds since 1970, in the years 1 to 9999, not 1e+300",
        lambda _client: cc.period_slot(60, at=1e300),
    ),
    "a reading of no key": (
        "pair must be of the class KVPair, not str",
        lambda _client: SEQUENCER.matches("k"),  # type: ignore[arg-type]
    ),
    "no client to verify with": (
        "client must be of the class Client, not NoneType",
        lambda _client: SEQUENCER.verify(None),  # type: ignore[arg-type]
    ),
    "a client to verify with on an event loop": (
        "client must be of the class Client (or call averify), not AsyncClient",
        lambda _client: SEQUENCER.verify(cc.AsyncClient(NOBODY)),  # type: ignore[arg-type]
    ),
    "no spec": (
        "spec must be of the class SessionSpec, not int",
        lambda _client: cc.failover_bound(15),  # type: ignore[arg-type]
    ),
}


@pytest.fixture(scope="module")
def client() -> Iterator[cc.Client]:
    with cc.Client(NOBODY) as client:
        yield client


@pytest.mark.parametrize("use", USES)
def test_is_refused_by_its_name(client: cc.Client, use: str) -> None:
    message, call = USES[use]
    with pytest.raises(InvalidArgument, match=re.escape(message)):
        call(client)


def test_is_refused_on_an_event_loop_too() -> None:
    async def main() -> None:
        async with cc.AsyncClient(NOBODY) as client:
            odd: Any = "x"
            with pytest.raises(InvalidArgument, match="operation 1 of a transaction must be a TxnOp"):
                await client.txn(odd)
            lock = cc.AsyncLock(client, "k")
            with pytest.raises(InvalidArgument, match="cancel must be an object with"):
                await lock.acquire(cancel=odd)
            with pytest.raises(InvalidArgument, match="how must be one of"):
                await lock.break_lock("s", how=odd)
            with pytest.raises(InvalidArgument, match="expected_session must be the id"):
                await lock.break_lock(None)  # type: ignore[arg-type]
            with pytest.raises(
                InvalidArgument, match=r"client must be of the class AsyncClient, not NoneType"
            ):
                await SEQUENCER.averify(None)  # type: ignore[arg-type]
            blocking: Any = cc.Client(NOBODY)
            with pytest.raises(InvalidArgument, match=r"AsyncClient \(or call verify\), not Client"):
                await SEQUENCER.averify(blocking)

    asyncio.run(main())


def test_an_operation_takes_a_text_for_its_value() -> None:
    assert cc.TxnOp("set", "k", "é").value == "é".encode()  # type: ignore[arg-type]


@pytest.mark.parametrize("odd", [b"x", None, 5])
def test_a_sequencer_is_read_from_a_string(odd: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"text must be the string that str\(sequencer\) gives, not "):
        cc.Sequencer.parse(odd)


@pytest.mark.parametrize(
    "check",
    [
        _validate.number,
        _validate.span,
        lambda name, value: _validate.seconds(name, value, minimum=0),
        lambda name, value: _validate.seconds(name, -value, minimum=0),
        _validate.uint64,
        lambda name, value: _validate.count(name, -value),
    ],
)
@pytest.mark.parametrize("digits", [400, 5000])
def test_an_integer_beyond_all_floats_is_refused_in_few_words(
    check: Callable[[str, object], object], digits: int
) -> None:
    with pytest.raises(InvalidArgument, match=r"^within must be .*, not an integer of \d+ bits$"):
        check("within", 10**digits)


def test_an_integer_beyond_all_floats_is_no_setting() -> None:
    with pytest.raises(cc.ConfigError, match=r"^timeout must be .* and finite, not an integer of \d+ bits"):
        cc.Client(NOBODY, timeout=10**400)


# -- what is given to a way of holding gets there


def noted(_: object = None) -> None:
    raise AssertionError("it was called")


async def noted_on_a_loop(_: object = None) -> None:
    noted()


KINDS: dict[str, Callable[[Any], Any]] = {
    "Lock": lambda client: cc.Lock(client, "k"),
    "ReentrantLock": lambda client: cc.ReentrantLock(client, "k"),
    "MultiLock": lambda client: cc.MultiLock(client, ["k", "l"]),
    "ReadWriteLock.read": lambda client: cc.ReadWriteLock(client, "k").read,
    "ReadWriteLock.write": lambda client: cc.ReadWriteLock(client, "k").write,
    "Semaphore": lambda client: cc.Semaphore(client, "k", 2),
    "Once": lambda client: cc.Once(client, "k"),
}
ASYNC_KINDS: dict[str, Callable[[Any], Any]] = {
    "Lock": lambda client: cc.AsyncLock(client, "k"),
    "ReentrantLock": lambda client: cc.AsyncReentrantLock(client, "k"),
    "MultiLock": lambda client: cc.AsyncMultiLock(client, ["k", "l"]),
    "ReadWriteLock.read": lambda client: cc.AsyncReadWriteLock(client, "k").read,
    "ReadWriteLock.write": lambda client: cc.AsyncReadWriteLock(client, "k").write,
    "Semaphore": lambda client: cc.AsyncSemaphore(client, "k", 2),
    "Once": lambda client: cc.AsyncOnce(client, "k"),
}
WAYS: dict[str, tuple[Callable[..., object], Callable[..., Awaitable[object]]]] = {
    "acquire": (
        lambda thing, **given: thing.acquire(**given),
        lambda thing, **given: thing.acquire(**given),
    ),
    "try_acquire": (
        lambda thing, **given: thing.try_acquire(**given),
        lambda thing, **given: thing.try_acquire(**given),
    ),
    "hold": (
        lambda thing, **given: thing.hold(**given).__enter__(),
        lambda thing, **given: thing.hold(**given).__aenter__(),
    ),
    "run": (
        lambda thing, **given: thing.run(noted, **given),
        lambda thing, **given: thing.run(noted_on_a_loop, **given),
    ),
    "wrap": (
        lambda thing, **given: thing.wrap(**given)(noted)(),
        lambda thing, **given: thing.wrap(**given)(noted_on_a_loop)(),
    ),
    "begin": (
        lambda thing, **given: thing.begin(**given),
        lambda thing, **given: thing.begin(**given),
    ),
}
REFUSED: dict[str, object] = {"timeout": -1, "max_hold": -1, "cancel": "x", "permits": 0, "interrupt": True}
"""For each setting what is refused by its name, once it gets to where it counts."""


class Later:
    """A flag that is raised a second after it was made, for a call that would wait for ever."""

    def __init__(self) -> None:
        self._at = time.monotonic() + 1.0

    def is_set(self) -> bool:
        return time.monotonic() >= self._at


def given_to(thing: object, way: str, setting: str) -> dict[str, object] | None:
    """Return what a way is given, None if it does not know the setting; no call waits for long."""
    method = getattr(thing, way, None)
    known = inspect.signature(method).parameters if method is not None else {}
    if setting not in known:
        return None
    endings = {"timeout": 0, "cancel": Later(), "slot": "1"}
    return {name: value for name, value in endings.items() if name in known} | {setting: REFUSED[setting]}


def elsewhere(call: Callable[[], object]) -> BaseException | None:
    """Return what a call raises in a thread of its own, where nothing can be interrupted."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - looked at by the test
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return raised[0] if raised else None


@pytest.mark.parametrize("kind", KINDS)
def test_each_way_of_holding_passes_each_setting_on(client: cc.Client, kind: str) -> None:
    tried = 0
    for way, (use, _) in WAYS.items():
        for setting in REFUSED:
            thing = KINDS[kind](client)
            given = given_to(thing, way, setting)
            if given is not None:
                tried += 1
                error = elsewhere(lambda use=use, thing=thing, given=given: use(thing, **given))  # type: ignore[misc]
                assert isinstance(error, InvalidArgument), (way, setting, error)
                assert str(error).startswith(setting), (way, setting, error)
    assert tried >= 5


@pytest.mark.parametrize("kind", ASYNC_KINDS)
def test_each_way_of_holding_on_a_loop_passes_each_setting_on(kind: str) -> None:
    async def main() -> None:
        async with cc.AsyncClient(NOBODY) as client:
            for way, (_, use) in WAYS.items():
                for setting in REFUSED.keys() - {"interrupt"}:  # each block is cancelled there
                    thing = ASYNC_KINDS[kind](client)
                    given = given_to(thing, way, setting)
                    if given is not None:
                        with pytest.raises(InvalidArgument, match=rf"^{setting}"):
                            await use(thing, **given)

    asyncio.run(main())
