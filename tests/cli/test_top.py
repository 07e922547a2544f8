"""``top``: it shows changes as they come, at a terminal and elsewhere, and can be ended."""

from __future__ import annotations

import json
import signal
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord import Client, Group, Lock, Partitioner, Semaphore, SessionSpec
from consul_coord.server import ReferenceServer
from tests.cli.processes import PROGRAM
from tests.cli.test_terminal import CTRL_C, CTRL_Z, screen

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Start
    from tests.cli.processes import Cli


def shown(top: Cli, matches: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
    """Return the next list of places that matches."""
    line = top.stdout.wait_for(lambda line: matches(json.loads(line)["places"]), "such places")
    places: list[dict[str, Any]] = json.loads(line)["places"]
    return places


def test_changes_are_told_as_they_come_and_a_signal_ends_it(start: Start, key: str, anywhere: str) -> None:
    top = start("top", key, "--json", address=anywhere)
    assert shown(top, lambda _: True) == []
    with Client(address=anywhere) as client:
        with Lock(client, f"{key}/lock", value="me").hold() as hold:
            (place,) = shown(top, bool)
            assert (place["key"], place["holders"][0]["session"]) == (f"{key}/lock", hold.session)
            with Semaphore(client, f"{key}/slots", 2).hold():
                places = shown(top, lambda places: len(places) == 2)
                assert [place["kind"] for place in places] == ["lock", "semaphore"]
        assert shown(top, lambda places: not places) == []
        assert Semaphore(client, f"{key}/slots", 2).destroy()
    top.send(signal.SIGTERM)
    assert top.end() == 143


def test_sessions_that_begin_later_are_shown_by_their_names(start: Start, key: str, address: str) -> None:
    top = start("top", key, "--json")
    assert shown(top, lambda _: True) == []
    with ExitStack() as held:
        for count, name in enumerate(("first", "second", "third"), 1):
            spec = SessionSpec(name=name)
            client = held.enter_context(Client(address=address, session=spec))
            held.enter_context(Lock(client, f"{key}/{name}"))
            places = shown(top, lambda places, count=count: len(places) == count)  # type: ignore[misc]
            names = {place["holders"][0]["session_name"] for place in places}
            assert names == {"first", "second", "third"} if count == 3 else name in names


def test_partitions_are_shown_with_their_owners(start: Start, key: str, anywhere: str) -> None:
    top = start("top", f"{key}/partitions", "--json", address=anywhere)
    with Client(address=anywhere) as client, Group(client, key, id="web-1") as group:
        with Partitioner(group, 2, settle=0.05):
            places = shown(top, lambda places: len(places) == 2)
            owners = {place["key"]: place["holders"][0]["value"] for place in places}
            assert owners == {f"{key}/partitions/{number}": "web-1" for number in range(2)}
        assert shown(top, lambda places: not places) == []


def test_text_elsewhere_than_at_a_terminal_is_plain(start: Start, key: str, client: Client) -> None:
    top = start("top", key)
    with Lock(client, key).hold() as hold:
        top.stdout.wait_for(lambda line: hold.session in line, "the holder")
    top.send(signal.SIGINT)
    assert top.end() == 130
    assert not any("\x1b" in line for line in top.stdout.all())


@pytest.mark.parametrize(("typed", "code"), [(b"xq", 0), (CTRL_C, 130)])
def test_at_a_terminal_it_shows_and_ends_by_the_keyboard(
    key: str, address: str, client: Client, typed: bytes, code: int
) -> None:
    with (
        Lock(client, key, value="the holder").hold(),
        screen([*PROGRAM, "top", key], address=address, term="xterm") as top,
    ):
        top.wait_for("1 held, 0 waiting")
        top.wait_for("the holder")
        top.wait_for("s+")
        top.type(CTRL_Z)
        top.type(typed)
        assert top.end() == code


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_terminal_that_closes_ends_it_with_129(key: str, address: str, unbuffered: str) -> None:
    command = [*PROGRAM, "top", key]
    with screen(command, address=address, term="xterm", PYTHONUNBUFFERED=unbuffered) as shown:
        shown.wait_for("0 held")
        shown.hang_up()
        assert shown.end() == 129


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_where_hang_ups_are_ignored_a_terminal_that_closes_ends_it_with_78(
    key: str, address: str, unbuffered: str
) -> None:
    command = ["sh", "-c", "trap '' HUP; exec \"$@\"", "sh", *PROGRAM, "top", key]
    with screen(command, address=address, term="xterm", PYTHONUNBUFFERED=unbuffered) as shown:
        shown.wait_for("0 held")
        shown.hang_up()
        assert shown.end() == 78


def test_at_a_terminal_that_can_only_print_it_prints(key: str, address: str, client: Client) -> None:
    with Lock(client, key).hold() as hold, screen([*PROGRAM, "top", key], address=address) as top:
        top.wait_for(hold.session)
        top.type(b"q")
        assert top.end() == 0


def test_an_agent_that_comes_later_is_waited_for(start: Start, key: str, tmp_path: Path) -> None:
    place = tmp_path / "consul.sock"
    top = start("top", key, "--json", address=f"unix://{place}")
    with ReferenceServer(uds=place):
        assert shown(top, lambda _: True) == []
        top.send(signal.SIGINT)
        assert top.end() == 130


def test_elsewhere_than_at_a_terminal_a_missing_agent_is_told_of(start: Start, key: str) -> None:
    top = start("top", key, address="127.0.0.1:1")
    top.stderr.wait_for(lambda line: "127.0.0.1:1" in line and "retrying" in line, "word of it")
    top.send(signal.SIGINT)
    assert top.end() == 130


def test_a_prefix_that_consul_would_change_is_2(start: Start) -> None:
    assert start("top", "/x").end() == 2
