"""Hearing who comes and goes: each change once, at a bounded cost."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from consul_coord import Group
from tests.election.waiting import until
from tests.group.seeing import Seen

if TYPE_CHECKING:
    from consul_coord import Client
    from tests.group.conftest import MakeClient


def test_the_present_state_comes_first_then_each_change(make_client: MakeClient, prefix: str) -> None:
    one, other = Group(make_client(), prefix, id="one"), Group(make_client(), prefix, id="other")
    with one, Seen(Group(make_client(), prefix)) as seen:
        seen.until_present("one")
        with other:
            seen.until_present("one", "other")
            one.update("new")
            until(lambda: seen.news[-1][2], "the value has changed")
        seen.until_present("one")
        assert seen.news == [
            (["one"], [], []),
            (["other"], [], []),
            ([], [], ["one"]),
            ([], ["other"], []),
        ]


def test_an_empty_group_is_a_state(client: Client, prefix: str) -> None:
    group = Group(client, prefix, id="one")
    with Seen(group) as seen:
        seen.until_present()
        with group:
            seen.until_present("one")
        seen.until_present()
    assert seen.news == [([], [], []), (["one"], [], []), ([], ["one"], [])]


def test_writes_elsewhere_wake_nobody(client: Client, prefix: str) -> None:
    with Group(client, prefix, id="one") as group, Seen(group) as seen:
        seen.until_present("one")
        time.sleep(0.05)
        before = client.stats().wakeups
        for number in range(10):
            client.kv.put(f"{prefix}/elsewhere", str(number))
        group.update("new")
        until(lambda: len(seen.states) == 2, "the own change is seen")
        assert client.stats().wakeups - before <= 4


def test_closing_a_watch_ends_it_soon(client: Client, prefix: str) -> None:
    watch = Group(client, prefix).watch()
    assert next(watch).value.all == ()
    started = time.monotonic()
    watch.close()
    assert list(watch) == []
    assert time.monotonic() - started < 1
