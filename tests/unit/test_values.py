"""A value that can't be written is refused by name, wherever it is given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import consul_coord as cc
from consul_coord.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable

RECIPES: dict[str, Callable[[Any, Any], object]] = {
    "Lock": lambda client, value: cc.Lock(client, "k", value=value),
    "ReadWriteLock": lambda client, value: cc.ReadWriteLock(client, "k", value=value),
    "Semaphore": lambda client, value: cc.Semaphore(client, "k", 2, value=value),
    "LeaderElection": lambda client, value: cc.LeaderElection(client, "k", value=value),
}
ASYNC_RECIPES: dict[str, Callable[[Any, Any], object]] = {
    "AsyncLock": lambda client, value: cc.AsyncLock(client, "k", value=value),
    "AsyncReadWriteLock": lambda client, value: cc.AsyncReadWriteLock(client, "k", value=value),
    "AsyncSemaphore": lambda client, value: cc.AsyncSemaphore(client, "k", 2, value=value),
    "AsyncLeaderElection": lambda client, value: cc.AsyncLeaderElection(client, "k", value=value),
}
BAD = {"half a character": "\udcff", "a number": 5, "a list": []}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("recipe", RECIPES)
def test_blocking(recipe: str, bad: str) -> None:
    with cc.Client() as client, pytest.raises(InvalidArgument, match="value"):
        RECIPES[recipe](client, BAD[bad])


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("recipe", ASYNC_RECIPES)
def test_in_coroutines(recipe: str, bad: str) -> None:
    with pytest.raises(InvalidArgument, match="value"):
        ASYNC_RECIPES[recipe](cc.AsyncClient(), BAD[bad])


def test_bytes_and_text_are_taken() -> None:
    with cc.Client() as client:
        assert cc.Lock(client, "k", value=b"\xff").key == "k"
        assert cc.Lock(client, "k", value="ü").key == "k"
