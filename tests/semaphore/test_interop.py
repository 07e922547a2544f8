"""One prefix shared with the official command line client: both count, both wait, both are woken."""

from __future__ import annotations

import os
import shlex
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import pytest

from consul_coord import SEMAPHORE_FLAGS, Client, Semaphore, SemaphoreLimitConflict
from tests.semaphore.conftest import Place, spec
from tests.support.proxy import FaultProxy
from tests.support.sites import Site, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from consul_coord.testing.agent import RealAgent

LIMIT = 3


@pytest.fixture
def site(real_agent: RealAgent) -> Site:
    return Site.at("agent", real_agent.address)


@pytest.fixture
def client(site: Site) -> Iterator[Client]:
    with Client(address=site.address, session=spec(site)) as client:
        yield client


class Journal:
    """One file that everybody appends to, in the order of what happened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(self, who: str, what: str) -> None:
        os.write(self._file, f"{who} {what}\n".encode())

    def close(self) -> None:
        os.close(self._file)

    def lines(self) -> list[list[str]]:
        return [line.split() for line in self.path.read_text().splitlines()]

    def entries(self, kind: str = "") -> int:
        return sum(what == "in" and who.startswith(kind) for who, what in self.lines())

    def most_inside(self) -> int:
        inside, most = set[str](), 0
        for who, what in self.lines():
            if what == "in":
                assert who not in inside
                inside.add(who)
            else:
                inside.remove(who)
            most = max(most, len(inside))
        return most


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal(tmp_path / "journal")
    yield journal
    journal.close()


class Peers:
    """``consul lock -n`` processes, one after the other in each thread."""

    def __init__(self, binary: Path, place: Place, journal: Journal) -> None:
        self.place = place
        self._binary = binary
        self._journal = journal

    def start(self, command: str, *, limit: int = LIMIT) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self._binary, "lock", f"-n={limit}", self.place.prefix, command],
            env={**os.environ, "CONSUL_HTTP_ADDR": self.place.site.address},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, who: str, *, seconds: float = 0.01, limit: int = LIMIT) -> None:
        """Hold a slot once."""
        path = shlex.quote(str(self._journal.path))
        command = f"echo {who} in >> {path}; sleep {seconds}; echo {who} out >> {path}"
        process = self.start(command, limit=limit)
        output, _ = process.communicate(timeout=50)
        assert process.returncode == 0, output


@pytest.fixture
def peers(consul_binary: Path, site: Site, journal: Journal) -> Peers:
    return Peers(consul_binary, Place(site), journal)


class Often(NamedTuple):
    """How many acquisitions of each kind."""

    ours: int
    theirs: int


MANY = [Often(80, 20), pytest.param(Often(200, 100), marks=[pytest.mark.long, pytest.mark.timeout(300)])]


def share(client: Client, peers: Peers, journal: Journal, often: Often) -> None:
    """Acquire as often, in four threads of ours and four of theirs."""
    place = peers.place

    def we(number: int) -> None:
        semaphore = Semaphore(client, place.prefix, LIMIT)
        for time in range(often.ours // 4):
            with semaphore.hold(timeout=50):
                journal.note(f"we-{number}-{time}", "in")
                threading.Event().wait(0.01)
                journal.note(f"we-{number}-{time}", "out")

    def they(number: int) -> None:
        for time in range(often.theirs // 4):
            peers.run(f"they-{number}-{time}")

    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(work, number) for number in range(4) for work in (we, they)]
        for call in calls:
            call.result(280)
    assert journal.entries("we") == often.ours
    assert journal.entries("they") == often.theirs
    assert journal.most_inside() <= LIMIT
    eventually(lambda: place.contenders() == [])


@pytest.mark.slow
@pytest.mark.parametrize("often", MANY)
def test_both_keep_to_the_limit_where_we_came_first(
    client: Client, peers: Peers, journal: Journal, often: Often
) -> None:
    Semaphore(client, peers.place.prefix, LIMIT).run(lambda _: None)
    assert peers.place.read() == {"Limit": LIMIT, "Holders": {}}
    share(client, peers, journal, often)


@pytest.mark.slow
@pytest.mark.parametrize("often", MANY)
def test_both_keep_to_the_limit_where_they_came_first(
    client: Client, peers: Peers, journal: Journal, often: Often
) -> None:
    with ThreadPoolExecutor(1) as pool:
        # It removes the record at its end if nobody holds a slot then.
        call = pool.submit(peers.run, "first", seconds=0.5)
        eventually(lambda: journal.entries("first"))
        share(client, peers, journal, often)
        call.result(20)


def test_they_read_our_record_and_we_read_theirs(client: Client, peers: Peers) -> None:
    semaphore = Semaphore(client, peers.place.prefix, 2, value="ours")
    ours = semaphore.acquire(timeout=5)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(peers.run, "they", seconds=0.5, limit=2)
        theirs = eventually(lambda: [one for one in semaphore.holders() if one.session != ours.session])
        assert [one.value for one in theirs] == [b""]
        assert set(peers.place.read()["Holders"]) == {ours.session, theirs[0].session}
        assert semaphore.try_acquire() is None
        # Woken by a peer's leave: it writes the record, and ends its session.
        with semaphore.hold(timeout=20) as permit:
            assert permit.verify()
        call.result(20)
    ours.release()


def test_they_wait_for_our_slots_and_are_woken(client: Client, peers: Peers, journal: Journal) -> None:
    semaphore = Semaphore(client, peers.place.prefix, 2)
    permits = [semaphore.acquire(timeout=5), semaphore.acquire(timeout=5)]
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(peers.run, "they", limit=2)
        eventually(lambda: len(peers.place.contenders()) == 3)
        assert journal.entries() == 0
        permits[0].release()
        call.result(20)
    permits[1].release()
    assert journal.entries("they") == 1


def test_several_slots_of_one_permit_count_for_them_as_many(
    client: Client, peers: Peers, journal: Journal
) -> None:
    semaphore = Semaphore(client, peers.place.prefix, 2)
    permit = semaphore.acquire(permits=2, timeout=5)
    with ThreadPoolExecutor(2) as pool:
        call = pool.submit(peers.run, "they", seconds=0.5, limit=2)
        eventually(lambda: len(peers.place.contenders()) == 3)
        assert journal.entries() == 0
        permit.release()
        eventually(lambda: journal.entries("they"))
        # One slot is free, and not taken: the other one is theirs.
        with semaphore.hold(permits=2, timeout=20) as permit:
            assert permit.verify()
            assert journal.lines()[-1] == ["they", "out"]
        call.result(20)


def test_both_keep_to_the_limit_where_some_take_several(
    client: Client, peers: Peers, journal: Journal
) -> None:
    def we(number: int) -> None:
        semaphore = Semaphore(client, peers.place.prefix, LIMIT)
        for time in range(8):
            names = [f"we-{number}-{time}-{slot}" for slot in range(1 + time % LIMIT)]
            with semaphore.hold(permits=len(names), timeout=50):
                for what in ("in", "out"):
                    for name in names:
                        journal.note(name, what)
                    threading.Event().wait(0.01)

    def they(number: int) -> None:
        for time in range(4):
            peers.run(f"they-{number}-{time}")

    with ThreadPoolExecutor(6) as pool:
        for call in [pool.submit(work, number) for number in range(3) for work in (we, they)]:
            call.result(100)
    assert journal.entries("they") == 12
    assert journal.most_inside() <= LIMIT
    eventually(lambda: peers.place.contenders() == [])


def test_a_go_client_takes_a_dead_holders_slot_at_once(peers: Peers, site: Site) -> None:
    with FaultProxy(site.address) as proxy, Client(address=proxy.address, session=spec(site)) as cut_off:
        semaphore = Semaphore(cut_off, peers.place.prefix, 2)
        first, second = semaphore.acquire(timeout=5), semaphore.acquire(timeout=5)
        proxy.go_down()
        for permit in (first, second):
            peers.place.operator.destroy(permit.session)
        with Client(address=site.address, session=spec(site)) as client:
            assert Semaphore(client, peers.place.prefix, 2).try_acquire() is None
        peers.run("they", limit=2)
        assert first.remaining() > 0
        assert second.remaining() > 0
        proxy.come_up()


def test_a_limit_conflict_is_one_for_both(client: Client, peers: Peers) -> None:
    place = peers.place
    Semaphore(client, place.prefix, 2).run(lambda _: None)
    process = peers.start("true", limit=3)
    output, _ = process.communicate(timeout=20)
    assert process.returncode != 0
    assert "semaphore limit conflict (lock: 2, local: 3)" in output
    place.write({"Limit": 3, "Holders": {}})
    with pytest.raises(SemaphoreLimitConflict):
        Semaphore(client, place.prefix, 2).acquire(timeout=5)


def test_a_record_that_they_wrote_is_written_back_in_the_same_form(client: Client, peers: Peers) -> None:
    place = peers.place
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(peers.run, "they", seconds=0.5, limit=2)
        before = eventually(lambda: place.operator.entry(place.record))
        (peer,) = place.read()["Holders"]
        with Semaphore(client, place.prefix, 2).hold(timeout=20) as permit:
            after = place.operator.entry(place.record)
        call.result(20)
    assert before is not None
    assert after is not None
    assert before["Value"] == f'{{"Limit":2,"Holders":{{"{peer}":true}}}}'.encode()
    assert after["Value"] == f'{{"Limit":2,"Holders":{{"{peer}":true,"{permit.session}":true}}}}'.encode()
    assert before["Flags"] == after["Flags"] == SEMAPHORE_FLAGS
