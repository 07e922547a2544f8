"""Following the leadership: the present state first, each change once, over restarts and lost indices."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING

import pytest

from consul_coord import Client, InvalidKey, LeaderElection, Watch, leader, observe
from consul_coord.events import Waiting
from consul_coord.recipes.election.leader import LeaderFollower
from consul_coord.server import ReferenceServer
from consul_coord.testing.agent import RealAgent
from tests.election.conftest import CONFIG, QUICK, SPEC
from tests.election.waiting import PATIENCE, until

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Self

    from consul_coord import LeaderInfo
    from consul_coord.events import Event
    from tests.election.conftest import MakeClient, Stand


class Follower:
    """A thread that follows a leadership until told to stop.

    ``wait``: seconds that a blocking query lasts, at whose end an index that went back before it began is
    noticed at the latest.
    """

    def __init__(self, client: Client, key: str, *, wait: float | None = None) -> None:
        self.seen: list[LeaderInfo | None] = []
        self._watch = (
            observe(client, key) if wait is None else Watch(client._runner, LeaderFollower(key, wait=wait))
        )
        self._thread = threading.Thread(target=self._follow)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._watch.close()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    def _follow(self) -> None:
        for result in self._watch:
            self.seen.append(result.value)

    @property
    def texts(self) -> list[str | None]:
        return [None if info is None else info.text for info in self.seen]

    def assert_nothing_twice(self) -> None:
        assert all(one != other for one, other in itertools.pairwise(self.seen))


def test_each_leader_and_each_value_is_seen_once(stand: Stand, client: Client, key: str) -> None:
    with Follower(client, key) as follower:
        until(lambda: follower.seen == [None], "the present state")
        first = stand(value="one")
        until(lambda: follower.texts[-1] == "one", "the first leader")
        first.wait_for_leadership(timeout=PATIENCE)  # others may see it before its own reply comes
        first.proclaim("uno")
        until(lambda: follower.texts[-1] == "uno", "the value")
        first.stop()
        until(lambda: follower.texts[-1] is None, "nobody")
        second = stand(value="two")
        until(lambda: follower.texts[-1] == "two", "the next leader")
        assert follower.seen[-1] == leader(client, key)
        second.stop()
        until(lambda: follower.texts[-1] is None, "nobody")
    assert follower.texts == [None, "one", "uno", None, "two", None]
    terms = [info.term for info in follower.seen if info is not None]
    assert terms[0] == terms[1] < terms[2]


def test_who_comes_late_sees_the_present_state_at_once(stand: Stand, client: Client, key: str) -> None:
    stand(value="here").wait_for_leadership(timeout=PATIENCE)
    with observe(client, key) as leaders:
        first = next(iter(leaders)).value
    assert first == leader(client, key)


@pytest.mark.slow
def test_an_agent_that_restarts_costs_no_news_and_repeats_none(
    consul_binary: Path, key: str, tmp_path: Path
) -> None:
    with (
        RealAgent(binary=consul_binary, data_dir=tmp_path) as agent,
        Client(address=agent.address, session=SPEC) as client,
        Client(address=agent.address) as watching,
        Follower(watching, key) as follower,
    ):
        with LeaderElection(client, key, value="v", retry_wait=QUICK) as election:
            election.wait_for_leadership(timeout=PATIENCE)
            until(lambda: follower.texts[-1:] == ["v"], "the leader")
            agent.kill()
            agent.start()
            until(lambda: election.is_leader, "a leader after the restart")
            term = election.term
            until(
                lambda: follower.seen[-1] is not None and follower.seen[-1].term == term, "the present state"
            )
        until(lambda: follower.texts[-1] is None, "nobody")
        follower.assert_nothing_twice()


def test_an_index_that_goes_back_costs_no_news_and_repeats_none(key: str) -> None:
    with (
        ReferenceServer(config=CONFIG) as server,
        Client(address=server.address, session=SPEC) as client,
        Client(address=server.address) as watching,
        Follower(watching, key, wait=1.0) as follower,
    ):
        until(lambda: follower.seen == [None], "the present state")
        before = server.snapshot()
        for number in range(20):
            client.kv.put("other", str(number))
        with LeaderElection(client, key, value="v", retry_wait=QUICK) as election:
            election.wait_for_leadership(timeout=PATIENCE)
            until(lambda: follower.texts[-1] == "v", "the leader")
            first = follower.seen[-1]
            server.restore(before)
            # Whether nobody is seen in between depends on how soon the loss is known.
            until(lambda: follower.texts[-1] == "v" and follower.seen[-1] != first, "elected again")
        until(lambda: follower.texts[-1] is None, "nobody")
        follower.assert_nothing_twice()


class Places:
    """An observer that keeps the place in the queue of each report of a wait."""

    def __init__(self) -> None:
        self.seen: list[int | None] = []

    def on_event(self, event: Event) -> None:
        if isinstance(event, Waiting):
            self.seen.append(event.blocker.position)


def test_a_candidate_that_follows_the_leader_reports_its_wait_once(
    stand: Stand, make_client: MakeClient
) -> None:
    stand().wait_for_leadership(timeout=PATIENCE)
    first, second = Places(), Places()
    stand(client=make_client(observer=first))
    until(lambda: first.seen, "the first in the queue")
    with make_client(observer=second) as client:
        stand(client=client, on_change=lambda _: None)
        until(lambda: second.seen, "the second")
    assert (first.seen, second.seen) == ([1], [2])


def test_closing_ends_the_iteration(client: Client, key: str) -> None:
    follower = Follower(client, key)
    with follower:
        until(lambda: follower.seen, "the present state")


def test_a_key_that_cannot_be_is_refused() -> None:
    with Client() as client:
        with pytest.raises(InvalidKey):
            observe(client, "/k")
        with pytest.raises(InvalidKey):
            leader(client, "/k")
        with pytest.raises(InvalidKey, match="'k/' can't be used: leave out the '/'"):
            observe(client, "k/")
        with pytest.raises(InvalidKey, match="'k/' can't be used: leave out the '/'"):
            leader(client, "k/")
