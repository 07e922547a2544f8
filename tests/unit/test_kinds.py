"""An argument of a wrong kind is refused by name when it is given, not by what fails on it later."""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import consul_coord as cc
from consul_coord.errors import ConfigError, InvalidArgument

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
    "SessionSpec": cc.SessionSpec,
}
SAID_OTHERWISE = {"key": "key", "prefix": "key", "keys": "key"}
"""A word that the error has where it does not have the argument's name."""
PARAMETERS = [
    (kind, name)
    for kind, make in MADE.items()
    for name, parameter in inspect.signature(make).parameters.items()
    if name != "client" and not isinstance(parameter.default, bool)
]


class Odd:
    """Fits nowhere."""

    def __repr__(self) -> str:
        return "odd-secret-7"


def making(kind: str) -> Callable[..., object]:
    """Return what makes it, with a client where it needs one."""
    make = MADE[kind]
    if "client" not in inspect.signature(make).parameters:
        return make
    client: object = cc.AsyncClient() if kind.startswith("Async") else cc.Client()
    return partial(make, client=client)


@pytest.mark.parametrize(("kind", "name"), PARAMETERS)
def test_is_refused_by_name(kind: str, name: str) -> None:
    with pytest.raises((InvalidArgument, ConfigError), match=SAID_OTHERWISE.get(name, name)):
        making(kind)(**{name: Odd()})


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


@pytest.mark.parametrize("spec", [None, 5, "an-id"])
def test_the_next_session_needs_a_spec(spec: Any) -> None:
    with cc.Client() as client, pytest.raises(InvalidArgument, match="session_spec must be a SessionSpec"):
        client.session_spec = spec
