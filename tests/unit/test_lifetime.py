"""Open clients at the end of a process, and in a forked child."""

from __future__ import annotations

import weakref
from contextlib import suppress

import pytest

from consul_coord.sync import lifetime


class Opened:
    """A client that notes what is done with it."""

    def __init__(self, *, fails: bool = False) -> None:
        self.told: list[str] = []
        self._fails = fails

    def close(self) -> None:
        self.told.append("close")
        if self._fails:
            raise MemoryError

    def forked(self) -> None:
        self.told.append("forked")


@pytest.fixture
def none_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifetime, "_open", weakref.WeakSet())


@pytest.mark.usefixtures("none_open")
def test_at_the_end_each_client_is_closed_also_after_one_that_fails() -> None:
    clients = [Opened(fails=number in {0, 2}) for number in range(4)]
    for client in clients:
        lifetime.begin(client)
    with pytest.raises(MemoryError):
        lifetime._close_all()
    assert [client.told for client in clients] == [["close"]] * 4


@pytest.mark.usefixtures("none_open")
def test_a_child_that_becomes_another_program_at_once_is_left_as_it_is() -> None:
    client = Opened()
    lifetime.begin(client)
    with suppress(MemoryError), lifetime.becoming_a_program():
        lifetime._forked()
        raise MemoryError
    assert client.told == []
    lifetime._forked()
    assert client.told == ["forked"], "any other child"
