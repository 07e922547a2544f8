"""The blocking facades and their async twins offer the same, and both make one call for each endpoint."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord.aio import endpoints as aio
from consul_coord.models import (
    CheckSpec,
    PreparedQuery,
    ReadOptions,
    Registration,
    Service,
    SessionSpec,
    WriteOptions,
)
from consul_coord.sync import endpoints as sync

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord.http.messages import Call

FACADES = ("KV", "Sessions", "Agent", "Catalog", "Health", "Query", "Status")
EXPECTED = {
    "KV": {
        *("get", "get_raw", "list", "keys", "put", "delete", "delete_tree", "acquire", "release"),
        *("update", "watch", "watch_tree"),
    },
    "Sessions": {
        *("create", "destroy", "renew", "info", "list", "node"),
        *("watch", "named", "destroy_named"),
    },
    "Agent": {
        *("info", "checks", "register_check", "deregister_check"),
        *("pass_check", "warn_check", "fail_check", "update_check"),
        *("register_service", "deregister_service"),
    },
    "Catalog": {"nodes", "node", "service", "register", "deregister"},
    "Health": {"node", "service", "state"},
    "Query": {"create", "get", "list", "execute", "delete"},
    "Status": {"leader", "peers"},
}
SECONDS = 3.0
"""What each call is given for itself."""
ARGUMENTS: dict[str, Any] = {
    "spec": CheckSpec(name="c", ttl=1),
    "service": Service("web"),
    "registration": Registration(node="n", address="a"),
    "query": PreparedQuery(service="web"),
    "value": b"v",
    "status": "passing",
    "state": "any",
}


def methods(facade: type[Any]) -> dict[str, Callable[..., Any]]:
    return {
        name: value for name, value in vars(facade).items() if inspect.isfunction(value) and name[0] != "_"
    }


def is_one_call(method: Callable[..., Any]) -> bool:
    """Return whether a method stands for one endpoint, rather than for a program of several calls."""
    return "options" in inspect.signature(method).parameters


PAIRS = [
    pytest.param(name, method, methods(getattr(aio, "Async" + facade)).get(name), id=f"{facade}.{name}")
    for facade in FACADES
    for name, method in methods(getattr(sync, facade)).items()
]


@pytest.mark.parametrize("facade", FACADES)
def test_facades_are_whole(facade: str) -> None:
    blocking, coroutine = getattr(sync, facade), getattr(aio, "Async" + facade)
    assert set(methods(blocking)) == set(methods(coroutine)) == EXPECTED[facade]
    assert blocking.__doc__ == coroutine.__doc__


@pytest.mark.parametrize(("name", "blocking", "coroutine"), PAIRS)
def test_twins_are_the_same(name: str, blocking: Callable[..., Any], coroutine: Callable[..., Any]) -> None:
    told = str(inspect.signature(coroutine)).replace("Async", "")
    assert str(inspect.signature(blocking)) == told
    assert blocking.__doc__ == coroutine.__doc__
    assert blocking.__doc__
    # A watch is an object, which waits when it is iterated over.
    assert inspect.iscoroutinefunction(coroutine) is not name.startswith("watch")
    assert not inspect.iscoroutinefunction(blocking)
    if is_one_call(blocking):
        for option in ("options", "timeout"):
            assert inspect.signature(blocking).parameters[option].kind is inspect.Parameter.KEYWORD_ONLY


class Caller:
    """A blocking runner that notes what it is to perform, and gives itself as the answer."""

    def __init__(self) -> None:
        self.calls: list[Call[Any]] = []

    def placed(self, options: WriteOptions | None) -> WriteOptions | None:
        return options

    def perform(self, call: Call[Any], *, timeout: float | None) -> object:
        assert timeout == SECONDS
        self.calls.append(call)
        return self


class AsyncCaller(Caller):
    """The same with ``await``."""

    async def perform(self, call: Call[Any], *, timeout: float | None) -> object:
        return super().perform(call, timeout=timeout)


@pytest.mark.parametrize("facade", FACADES)
def test_each_method_makes_one_call_and_returns_its_answer(facade: str) -> None:
    for name, method in methods(getattr(sync, facade)).items():
        if not is_one_call(method):
            continue
        required = [
            parameter.name
            for parameter in list(inspect.signature(method).parameters.values())[1:]
            if parameter.default is inspect.Parameter.empty
        ]
        arguments = [ARGUMENTS.get(parameter, "x") for parameter in required]
        blocking, coroutine = Caller(), AsyncCaller()
        assert getattr(getattr(sync, facade)(blocking), name)(*arguments, timeout=SECONDS) is blocking
        answer = getattr(getattr(aio, "Async" + facade)(coroutine), name)(*arguments, timeout=SECONDS)
        assert asyncio.run(answer) is coroutine
        (first,), (second,) = blocking.calls, coroutine.calls
        assert first.request == second.request


OPTIONAL: dict[str, Any] = {
    "spec": SessionSpec(ttl=77.0),
    "separator": "/",
    "flags": 7,
    "cas": 5,
    "value": b"another",
    "note": "said",
    "output": "said",
    "checks": (CheckSpec(name="c", ttl=1),),
    "check_id": "c",
    "service_id": "s",
    "passing": True,
    "tag": "t",
    "limit": 3,
}
OPTIONAL_ONES = [
    pytest.param(facade, name, parameter, id=f"{facade}.{name}-{parameter.name}")
    for facade in FACADES
    for name, method in methods(getattr(sync, facade)).items()
    if is_one_call(method)
    for parameter in inspect.signature(method).parameters.values()
    if parameter.default is not inspect.Parameter.empty and parameter.name != "timeout"
]


@pytest.mark.parametrize(("facade", "name", "parameter"), OPTIONAL_ONES)
def test_each_optional_argument_changes_what_is_sent(
    facade: str, name: str, parameter: inspect.Parameter
) -> None:
    kind = ReadOptions if "ReadOptions" in str(parameter.annotation) else WriteOptions
    value = kind(datacenter="dc9") if parameter.name == "options" else OPTIONAL[parameter.name]
    method = methods(getattr(sync, facade))[name]
    required = [
        ARGUMENTS.get(each.name, "x")
        for each in list(inspect.signature(method).parameters.values())[1:]
        if each.default is inspect.Parameter.empty
    ]
    blocking, coroutine = Caller(), AsyncCaller()
    for given in ({}, {parameter.name: value}):
        getattr(getattr(sync, facade)(blocking), name)(*required, **given, timeout=SECONDS)
        asyncio.run(
            getattr(getattr(aio, "Async" + facade)(coroutine), name)(*required, **given, timeout=SECONDS)
        )
    for without, having in (blocking.calls, coroutine.calls):
        assert without.request != having.request
