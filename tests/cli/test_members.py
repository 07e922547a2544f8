"""``members``: who is in a group, once and at each change."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from consul_coord import Group, Member, Members
from consul_coord.cli.members import _as_text

if TYPE_CHECKING:
    from consul_coord import Client
    from tests.cli.conftest import Call, Start


def test_members_are_shown_the_longest_one_first(call: Call, client: Client, key: str) -> None:
    with Group(client, key, id="web-2", value="10.0.0.2:80"), Group(client, key, id="web-1", value=b"\xff"):
        outcome = call("members", key)
        assert outcome.code == 0
        head, first, second = (line.split() for line in outcome.out.splitlines())
        assert head == ["ID", "VALUE", "SESSION", "SINCE"]
        assert first[:2] == ["web-2", "10.0.0.2:80"]
        assert second[0] == "web-1"
        told = [json.loads(line) for line in call("members", key, "--json").out.splitlines()]
        assert [(one["id"], one.get("value"), one.get("value_base64")) for one in told] == [
            ("web-2", "10.0.0.2:80", None),
            ("web-1", None, "/w=="),
        ]
        assert {one["session"] for one in told} == {first[2]}


def test_where_nobody_is_the_answer_is_no(call: Call, key: str) -> None:
    outcome = call("members", key)
    assert (outcome.code, outcome.out) == (1, "")
    assert f"nobody is in '{key}'" in outcome.err


def test_a_watch_tells_each_change(start: Start, client: Client, key: str) -> None:
    group = Group(client, key, id="web-1", value="starting")
    with group:
        watch = start("members", key, "--watch")
        watch.stdout.wait_for(lambda line: line == "+ web-1 starting", "+ web-1 starting")
        group.update("ready")
        watch.stdout.wait_for(lambda line: line == "* web-1 ready", "* web-1 ready")
    watch.stdout.wait_for(lambda line: line == "- web-1 ready", "- web-1 ready")


def test_a_member_that_went_and_came_back_between_two_looks_is_there_in_the_end() -> None:
    before, after = (Member("web-1", value, "s", 7) for value in (b"old", b"new"))
    seen = Members(all=(after,), joined=(after,), left=(before,))
    assert list(_as_text(seen)) == ["- web-1 old", "+ web-1 new"]


def test_a_watch_tells_each_change_in_json(start: Start, client: Client, key: str) -> None:
    watch = start("members", key, "--watch", "--json")
    first = watch.stdout.wait_for(lambda line: True, "the present state")
    assert json.loads(first) == {"all": [], "joined": [], "left": [], "changed": []}
    with Group(client, key, id="web-1", value="x"):
        told = json.loads(watch.stdout.wait_for(lambda line: "web-1" in line, "it has joined"))
        assert told["joined"] == told["all"]
        assert [(one["id"], one["value"]) for one in told["all"]] == [("web-1", "x")]


def test_holders_shows_members_as_such(call: Call, client: Client, key: str) -> None:
    with Group(client, key, id="web-1"):
        (line,) = call("holders", key, "--json").out.splitlines()
        assert json.loads(line)["kind"] == "member"


def test_a_prefix_that_can_not_be_used_is_usage(call: Call, key: str) -> None:
    outcome = call("members", f"{key}/")
    assert outcome.code != 0
    assert "leave out the '/' at its end" in outcome.err
