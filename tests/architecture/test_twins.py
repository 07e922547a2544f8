"""The blocking and the async names offer the same: names, parameters, documentation, and what is awaited."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import consul_coord
from consul_coord.aio import blocks as aio_blocks
from consul_coord.aio import endpoints as aio_endpoints
from consul_coord.sync import blocks as sync_blocks
from consul_coord.sync import endpoints as sync_endpoints
from tests.architecture.twins import Twins, members

if TYPE_CHECKING:
    from collections.abc import Iterator

WATCHES = frozenset({"watch", "watch_tree"})
PLAIN = {
    "Client": frozenset({"now", "healthy", "ready", "stats"}),
    "Group": frozenset({"watch"}),
    "Hold": frozenset({"deadline", "remaining", "check", "beat", "guard", "on_lost"}),
    "KeptSession": frozenset({"remaining", "export"}),
    "LeaderElection": frozenset({"leading"}),
    "Lock": frozenset({"cancel", "hold", "wrap"}),
    "LossEvent": frozenset({"is_set"}),
    "Semaphore": frozenset({"cancel", "hold", "wrap"}),
    "KV": WATCHES,
    "Once": frozenset({"cancel"}),
    "Sessions": frozenset({"watch"}),
}
"""Methods without I/O, by class; they hold for its subclasses too."""
OWN_DOCS = {
    "Client": frozenset({"", "__init__"}),  # threads here, a loop there
    "Lock": frozenset({"run"}),  # calls here, awaits there
    "Semaphore": frozenset({"run"}),
    "KeptSession": frozenset({""}),
    "Once": frozenset({"run"}),
}
OWN_PARAMETERS = {"Client": {"__init__": frozenset({"background_http_client"})}}


def twins_of(blocking: type[Any], coroutine: type[Any]) -> Twins:
    lineage = [cls.__name__ for cls in blocking.__mro__]
    nothing: frozenset[str] = frozenset()
    return Twins(
        blocking=blocking,
        coroutine=coroutine,
        plain=nothing.union(*(PLAIN.get(name, nothing) for name in lineage)),
        own_docs=nothing.union(*(OWN_DOCS.get(name, nothing) for name in lineage)),
        own_parameters=OWN_PARAMETERS.get(blocking.__name__, {}),
    )


PUBLIC = [name.removeprefix("Async") for name in consul_coord.__all__ if name.startswith("Async")]
TWINS = [
    *(twins_of(getattr(consul_coord, name), getattr(consul_coord, f"Async{name}")) for name in PUBLIC),
    twins_of(sync_blocks.Held, aio_blocks.AsyncHeld),
    *(
        twins_of(getattr(sync_endpoints, name), getattr(aio_endpoints, f"Async{name}"))
        for name in ("KV", "Sessions", "Agent", "Catalog", "Health", "Query", "Status")
    ),
]


def named(twins: Twins) -> str:
    return twins.blocking.__name__


@pytest.mark.parametrize("twins", TWINS, ids=named)
def test_twins_offer_the_same(twins: Twins) -> None:
    assert twins.differences() == []


@pytest.mark.parametrize("twins", TWINS, ids=named)
def test_what_is_said_to_differ_exists(twins: Twins) -> None:
    known = set(members(twins.blocking)) | {""}
    assert twins.plain | twins.own_docs | set(twins.own_parameters) <= known


def test_after_the_first_parameters_everything_is_keyword_only() -> None:
    positional = {
        ("Lock", "__init__"): ["client", "key"],
        ("Client", "__init__"): ["address"],
        ("Lock", "acquire"): [],
        ("Lock", "hold"): [],
        ("Lock", "run"): ["fn"],
        ("Lock", "wrap"): [],
        ("Client", "close"): [],
        ("Client", "healthy"): [],
        ("Hold", "ensure"): ["seconds"],
        ("Hold", "put"): ["value"],
        ("Hold", "on_lost"): ["fn"],
        ("LossEvent", "wait"): ["timeout"],
    }
    for (cls, method), expected in positional.items():
        code = getattr(getattr(consul_coord, cls), method).__code__
        assert list(code.co_varnames[1 : code.co_argcount]) == expected, (cls, method)


class Blocking:
    """Does it."""

    @property
    def fact(self) -> int:
        """A fact."""
        return 1

    def pure(self) -> int:
        """Compute."""
        return 1

    def act(self, *, timeout: float | None = None) -> None:
        """Act."""

    def __enter__(self) -> None: ...


class AsyncBlocking:
    """Does it."""

    @property
    def fact(self) -> int:
        """A fact."""
        return 1

    def pure(self) -> int:
        """Compute."""
        return 1

    async def act(self, *, timeout: float | None = None) -> None:
        """Act."""

    async def __aenter__(self) -> None: ...


def differences(**changes: object) -> list[str]:
    changed = type("AsyncBlocking", (AsyncBlocking,), {"__doc__": AsyncBlocking.__doc__, **changes})
    return Twins(blocking=Blocking, coroutine=changed, plain=frozenset({"pure"})).differences()


def planted() -> Iterator[tuple[str, dict[str, object]]]:
    async def coroutine(self: object) -> None:
        """Compute."""

    def plain(self: object, *, timeout: float | None = None) -> None:
        """Act."""

    async def other_default(self: object, *, timeout: float = 1.0) -> None:
        """Act."""

    async def positional(self: object, timeout: float | None = None) -> None:
        """Act."""

    async def other_name(self: object, *, limit: float | None = None) -> None:
        """Act."""

    async def other_doc(self: object, *, timeout: float | None = None) -> None:
        """Act differently."""

    yield "pure of the async twin is a coroutine function", {"pure": coroutine}
    yield "act of the async twin is not a coroutine function", {"act": plain}
    yield "act takes other parameters", {"act": other_default}
    yield "act takes other parameters", {"act": positional}
    yield "act takes other parameters", {"act": other_name}
    yield "act is documented differently", {"act": other_doc}
    yield "fact is a property in one of them only", {"fact": coroutine}
    yield "more is in one of them only", {"more": coroutine}
    yield "__aexit__ is in one of them only", {"__aexit__": coroutine}
    yield "the classes are documented differently", {"__doc__": "Does something else."}


@pytest.mark.parametrize(("told", "changes"), list(planted()))
def test_a_difference_is_caught(told: str, changes: dict[str, Any]) -> None:
    assert differences(**changes) == [told]


def test_twins_without_a_difference_have_none() -> None:
    assert differences() == []
