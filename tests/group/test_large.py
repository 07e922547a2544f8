"""The bytes and requests that a change among a thousand members costs each watcher: bounded, and measured."""

from __future__ import annotations

import random
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from bench.bed import Bed
from bench.counting import RENEWAL, counting_proxy
from consul_coord import GROUP_FLAGS, Client, Group, SessionSpec, TxnOp
from consul_coord.recipes.group import follow
from consul_coord.recipes.group.members import BUCKETS, GroupPlan, bucket_of
from consul_coord.recipes.watch import places
from tests.election.waiting import until
from tests.group.conftest import SPEC
from tests.group.seeing import Seen

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bench.counting import Counts
    from tests.group.conftest import MakeClient

MEMBERS = 1_000
BODY = 320
"""Bytes of one member in a list, with an id of 20 characters and a value of 13, at most."""
LOOK = 120
"""Bytes of a folded answer's body, at most."""


def names(count: int) -> list[str]:
    dice = random.Random(1)
    return [f"host-{number:04}-{dice.randrange(10**10):010}" for number in range(count)]


class Crowd:
    """A group of many members, kept by one session, and a watcher whose requests are counted."""

    def __init__(self, operator: Client, prefix: str, seen: Seen, counts: Counts) -> None:
        self.operator, self.seen, self._counts = operator, seen, counts
        self._plan = GroupPlan(prefix)
        self._session = operator.session.create(SessionSpec(ttl=600, lock_delay=0, allow_unbounded=True))

    def write(self, *members: str, value: str = "10.0.0.5:8080") -> None:
        """Have them in the group, with this value."""
        keys = [self._plan.key(member) for member in members]
        for start in range(0, len(keys), 50):
            ops = (
                TxnOp.lock(key, self._session, flags=GROUP_FLAGS, value=value)
                for key in keys[start : start + 50]
            )
            self.operator.txn(*ops)

    def remove(self, *members: str) -> None:
        for member in members:
            self.operator.kv.delete(self._plan.key(member))

    def until_present(self, count: int) -> None:
        until(lambda: self.seen.states and len(self.seen.states[-1].all) == count, f"{count} are seen")

    @contextmanager
    def cost(self, *, requests: float, read: float) -> Iterator[None]:
        """Have the watcher ask and read no more than that, renewals apart."""
        since = len(self._counts.seen)
        yield
        seen = [each for each in self._counts.seen[since:] if each.kind != RENEWAL]
        assert len(seen) <= requests
        assert sum(each.read for each in seen) <= read


@pytest.fixture
def crowd(address: str, prefix: str, tmp_path: Path) -> Iterator[Crowd]:
    with (
        counting_proxy(Bed(address=address, quick=True, folder=tmp_path)) as (bed, counts),
        Client(address=address, session=SPEC) as operator,
        Client(address=bed.address, session=SPEC) as client,
        Seen(Group(client, prefix)) as seen,
    ):
        yield Crowd(operator, prefix, seen, counts)


@pytest.mark.slow
def test_a_change_costs_each_of_a_thousand_watchers_a_sixteenth_of_the_list(crowd: Crowd) -> None:
    """Its bucket, and a look at each; and a few waiting queries: young ones are short."""
    members = names(MEMBERS)
    crowd.write(*members)
    crowd.until_present(MEMBERS)
    largest = max(sum(bucket_of(member) == bucket for member in members) for bucket in BUCKETS) + 1
    bound = {"requests": 16 + 6, "read": largest * BODY + 22 * LOOK}
    assert bound["read"] < MEMBERS * BODY / 10
    with crowd.cost(**bound):
        crowd.write("one more")
        crowd.until_present(MEMBERS + 1)
    with crowd.cost(**bound):
        crowd.write(members[7], value="10.0.0.6:8080")
        until(lambda: crowd.seen.states[-1].changed, "the value is seen")
    with crowd.cost(**bound):
        crowd.remove(members[9])
        crowd.until_present(MEMBERS)
    assert crowd.seen.news[-3:] == [(["one more"], [], []), ([], [], [members[7]]), ([], [members[9]], [])]


def test_a_burst_among_a_thousand_members_is_told_together(crowd: Crowd) -> None:
    """The members are read once for many changes; the pause in between depends on their number alone."""
    members = names(MEMBERS)
    crowd.write(*members)
    crowd.until_present(MEMBERS)
    before = len(crowd.seen.states)
    # One list in all, perhaps with two or three rounds of looks, and a wake-up for each.
    with crowd.cost(requests=4 * (16 + 16 + 4), read=4 * MEMBERS * BODY):
        crowd.remove(*members[:100])
        crowd.until_present(MEMBERS - 100)
    assert len(crowd.seen.states) - before <= 4


def test_a_small_group_is_listed(crowd: Crowd) -> None:
    crowd.write(*names(100))
    crowd.until_present(100)
    # The list, a look, and a few waiting queries: young ones are short, and one may have begun before.
    with crowd.cost(requests=7, read=101 * BODY + 7 * LOOK):
        crowd.write("one more")
        crowd.until_present(101)


# -- with buckets, whatever the number of members


@pytest.fixture
def always_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "LARGE", 1)


@pytest.mark.usefixtures("always_large")
def test_after_a_long_silence_all_members_are_listed(crowd: Crowd, monkeypatch: pytest.MonkeyPatch) -> None:
    """Consul forgets after a while that something was deleted, and a bucket's index with it."""
    crowd.write(*names(50))
    crowd.until_present(50)
    monkeypatch.setattr(places, "REMEMBERED", -1.0)
    # Where the machine is busy, the next query may have been sent before the look at what was seen.
    with crowd.cost(requests=5, read=51 * BODY + 5 * LOOK):
        crowd.write("one more")
        crowd.until_present(51)


@pytest.mark.usefixtures("always_large")
def test_every_change_is_seen_once(make_client: MakeClient, prefix: str) -> None:
    client, dice = make_client(), random.Random(2)
    groups = {name: Group(client, prefix, id=name) for name in names(12)}
    values, joined = dict.fromkeys(groups, ""), dict[str, str]()
    with Seen(Group(make_client(), prefix)) as seen:
        for number in range(40):
            name = dice.choice(list(groups))
            if name not in joined:
                groups[name].join()
                joined[name] = values[name]  # the one that it last gave
            elif dice.random() < 0.5:
                groups[name].update(str(number))
                joined[name] = values[name] = str(number)
            else:
                groups[name].leave()
                del joined[name]
            if dice.random() < 0.7:
                until(lambda: _state(seen) == joined, "the change is seen")
        until(lambda: _state(seen) == joined, "all are seen")
    told: dict[str, str] = {}
    for state in seen.states:
        for member in state.left:
            del told[member.id]
        for member in (*state.joined, *state.changed):
            told[member.id] = member.text
        assert told == {member.id: member.text for member in state.all}


def _state(seen: Seen) -> dict[str, str]:
    return {member.id: member.text for member in seen.states[-1].all} if seen.states else {}
