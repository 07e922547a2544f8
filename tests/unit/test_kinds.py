"""An argument of a wrong kind is refused by name when it is given, not by what fails on it later."""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import consul_coord as cc
from consul_coord.errors import ConfigError, InvalidArgument
from tests.unit.test_times import NOBODY

if TYPE_CHECKING:
    from collections.abc import Callable

MADE: dict[str, Callable[..., object]] = {
    "Client": cc.Client,
    "Lock": partial(cc.Lock, key="k"),
    "MultiLock": partial(cc.MultiLock, keys=["k", "l"]),
    "ReadWriteLock": partial(cc.ReadWriteLock, key="k"),
    "Semaphore": partial(cc.Semaphore, prefix="k", limit=2),
    "LeaderElection": partial(cc.LeaderElection, key="k"),
    "Once": partial(cc.Once, key="k"),
    "Group": partial(cc.Group, prefix="k"),
    "AsyncClient": cc.AsyncClient,
    "AsyncLock": partial(cc.AsyncLock, key="k"),
    "AsyncMultiLock": partial(cc.AsyncMultiLock, keys=["k", "l"]),
    "AsyncReadWriteLock": partial(cc.AsyncReadWriteLock, key="k"),
    "AsyncSemaphore": partial(cc.AsyncSemaphore, prefix="k", limit=2),
    "AsyncLeaderElection": partial(cc.AsyncLeaderElection, key="k"),
    "AsyncOnce": partial(cc.AsyncOnce, key="k"),
    "AsyncGroup": partial(cc.AsyncGroup, prefix="k"),
    "Partitioner": partial(cc.Partitioner, partitions=2),
    "AsyncPartitioner": partial(cc.AsyncPartitioner, partitions=2),
    "ReentrantLock": partial(cc.ReentrantLock, key="k"),
    "AsyncReentrantLock": partial(cc.AsyncReentrantLock, key="k"),
    "every": partial(cc.every, key="k", period=60),
    "async_every": partial(cc.async_every, key="k", period=60),
    "leader": partial(cc.leader, key="k"),
    "observe": partial(cc.observe, key="k"),
    "period_slot": partial(cc.period_slot, 60),
    "SessionSpec": cc.SessionSpec,
    "ReadOptions": cc.ReadOptions,
    "WriteOptions": cc.WriteOptions,
    "CheckSpec": partial(cc.CheckSpec, name="c", ttl=5.0),
    "HealthCheck": partial(cc.HealthCheck, "c"),
    "PreparedQuery": partial(cc.PreparedQuery, service="web"),
    "Registration": partial(cc.Registration, node="n", address="a"),
    "Service": partial(cc.Service, "web"),
    "Sequencer": partial(cc.Sequencer, "k", 1, "s"),
    "TxnOp": partial(cc.TxnOp, "set", "k"),
}
NAMED = {"id": "check|service|session|query", "name": "node|service|name", "id_or_name": "query"}
"""The same for calls, which say what the id or name is of."""
OF_CONSUL = {"create_index", "modify_index"}
"""What is read, and never sent."""
SAID_OTHERWISE = {"key": "key", "prefix": "key", "keys": "key"}
"""A word that the error has where it does not have the argument's name."""
PARAMETERS = [
    (kind, name)
    for kind, make in MADE.items()
    for name, parameter in inspect.signature(make).parameters.items()
    if name not in {"client", "group", *OF_CONSUL} and not isinstance(parameter.default, bool)
]
CALLS: dict[str, dict[str, object]] = {
    "agent": {"spec": cc.CheckSpec(name="c", ttl=5.0), "service": cc.Service("web"), "status": "passing"},
    "catalog": {"registration": cc.Registration(node="n", address="a")},
    "health": {"state": "any"},
    "kv": {"key": "k", "prefix": "k", "value": b"v", "session": "s", "fn": bytes},
    "query": {"query": cc.PreparedQuery(service="web"), "id_or_name": "q"},
    "session": {},
    "status": {},
}
"""By facade: arguments that it takes, besides names."""
GIVEN = [
    (facade, method, name)
    for facade in CALLS
    for method, call in inspect.getmembers(getattr(cc.Client(), facade), inspect.ismethod)
    if not method.startswith("_")
    for name, parameter in inspect.signature(call).parameters.items()
    if not isinstance(parameter.default, bool)
]
"""Facades, their methods, and the arguments of these."""


class Odd:
    """Fits nowhere."""

    def __repr__(self) -> str:
        return "odd-secret-7"


def making(kind: str) -> Callable[..., object]:
    """Return what makes it, with a client where it needs one."""
    make = MADE[kind]
    taken = inspect.signature(make).parameters
    if kind.lower().startswith("async"):
        client: object = cc.AsyncClient()
        group: object = cc.AsyncGroup(cc.AsyncClient(), "g")
    else:
        client, group = cc.Client(), cc.Group(cc.Client(), "g")
    return partial(
        make, **{name: value for name, value in (("client", client), ("group", group)) if name in taken}
    )


@pytest.mark.parametrize(("kind", "name"), PARAMETERS)
def test_is_refused_by_name(kind: str, name: str) -> None:
    with pytest.raises((InvalidArgument, ConfigError), match=SAID_OTHERWISE.get(name, name)):
        making(kind)(**{name: Odd()})


@pytest.mark.parametrize(("facade", "method", "name"), GIVEN)
def test_is_refused_by_name_in_a_call(facade: str, method: str, name: str) -> None:
    with cc.Client(NOBODY) as client:
        call = getattr(getattr(client, facade), method)
        needed = [
            each.name
            for each in inspect.signature(call).parameters.values()
            if each.default is inspect.Parameter.empty
        ]
        given = {each: CALLS[facade].get(each, "n") for each in needed} | {name: Odd()}
        with pytest.raises(InvalidArgument, match=NAMED.get(name, name)):
            call(**given)


@pytest.mark.parametrize("kind", ["Client", "AsyncClient"])
@pytest.mark.parametrize("name", ["token", "token_file", "http_auth"])
@pytest.mark.parametrize("secret", [Odd(), ["odd-secret-7"], ("odd-secret-7", 5)], ids=lambda _: "")
def test_a_secret_of_a_wrong_kind_is_not_shown(kind: str, name: str, secret: Any) -> None:
    with pytest.raises(ConfigError) as raised:
        MADE[kind](**{name: secret})
    assert "odd-secret-7" not in str(raised.value)


@pytest.mark.parametrize("kind", ["Client", "AsyncClient"])
def test_two_letters_are_no_user_and_password(kind: str) -> None:
    with pytest.raises(ConfigError, match="http_auth takes a pair"):
        MADE[kind](http_auth="ab")


@pytest.mark.parametrize("kind", ["Client", "AsyncClient"])
def test_a_class_is_no_clock(kind: str) -> None:
    with pytest.raises(InvalidArgument, match=r"clock must be .* now\(\), .*not the class"):
        MADE[kind](clock=cc.SystemClock)


def test_a_client_of_httpx_is_of_the_same_world() -> None:
    import httpx

    refused = pytest.raises(ConfigError, match=r"takes an httpx\.AsyncClient, not Client")
    with httpx.Client() as theirs, refused:
        cc.AsyncClient(http_client=theirs)  # type: ignore[arg-type]


def test_a_client_of_httpx_for_the_background_is_refused_at_once() -> None:
    import httpx

    refused = pytest.raises(
        ConfigError, match=r"background_http_client takes an httpx\.AsyncClient, not Client"
    )
    with httpx.Client() as theirs, refused:
        cc.Client(http_client=theirs, background_http_client=theirs)  # type: ignore[arg-type]


@pytest.mark.parametrize("spec", [None, 5, "an-id"])
def test_the_next_session_needs_a_spec(spec: Any) -> None:
    with cc.Client() as client, pytest.raises(InvalidArgument, match="session_spec must be a SessionSpec"):
        client.session_spec = spec
