"""The blocking facades and their async twins offer the same, and both make exactly one call."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord.aio import endpoints as aio
from consul_coord.models import CheckSpec, PreparedQuery, Registration
from consul_coord.sync import endpoints as sync

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord.http.messages import Call

FACADES = ("KV", "Sessions", "Agent", "Catalog", "Health", "Query", "Status")
EXPECTED = {
    "KV": {"get", "get_raw", "list", "keys", "put", "delete", "delete_tree", "acquire", "release"},
    "Sessions": {"create", "destroy", "renew", "info", "list", "node"},
    "Agent": {
        *("info", "checks", "register_check", "deregister_check"),
        *("pass_check", "warn_check", "fail_check", "update_check"),
    },
    "Catalog": {"nodes", "node", "register", "deregister"},
    "Health": {"node", "state"},
    "Query": {"create", "get", "list", "delete"},
    "Status": {"leader", "peers"},
}
ARGUMENTS: dict[str, Any] = {
    "spec": CheckSpec(name="c", ttl=1),
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
    assert inspect.signature(blocking) == inspect.signature(coroutine)
    assert blocking.__doc__ == coroutine.__doc__
    assert blocking.__doc__
    assert inspect.iscoroutinefunction(coroutine)
    assert not inspect.iscoroutinefunction(blocking)
    assert inspect.signature(blocking).parameters["options"].kind is inspect.Parameter.KEYWORD_ONLY


@pytest.mark.parametrize("facade", FACADES)
def test_each_method_makes_one_call_and_returns_its_answer(facade: str) -> None:
    for name, method in methods(getattr(sync, facade)).items():
        required = [
            parameter.name
            for parameter in list(inspect.signature(method).parameters.values())[1:]
            if parameter.default is inspect.Parameter.empty
        ]
        arguments = [ARGUMENTS.get(parameter, "x") for parameter in required]
        seen: list[Call[Any]] = []

        def perform(call: Call[Any], /, *, seen: list[Call[Any]] = seen) -> object:
            seen.append(call)
            return seen

        async def perform_async(call: Call[Any], /, *, seen: list[Call[Any]] = seen) -> object:
            return perform(call, seen=seen)

        blocking = getattr(getattr(sync, facade)(perform), name)(*arguments)
        assert blocking is seen
        assert asyncio.run(getattr(getattr(aio, "Async" + facade)(perform_async), name)(*arguments)) is seen
        first, second = seen
        assert first.request == second.request
