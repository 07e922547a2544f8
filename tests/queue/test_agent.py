"""The queue on a real agent: order, cost, deaths, and Go's clients on the same key.

What was measured is printed (``-s`` shows it).
"""

from __future__ import annotations

import json
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from consul_coord import Client, Lock, SessionSpec
from consul_coord.testing.agent import RealAgent
from tests.lock import programs
from tests.queue.crowd import Crowd
from tests.support.sites import Site, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.programs import Program

MOST_ENTRIES = 3.2
"""Raft entries that one hold may cost: a join, a take, an unlock, and what the server does by itself."""


@pytest.fixture(scope="module")
def agent(consul_binary: Path) -> Iterator[RealAgent]:
    """An agent without other users, so that its Raft log tells of these tests alone, and of any number."""
    unlimited = {"limits": {"http_max_conns_per_client": 0}}
    with RealAgent(binary=consul_binary, config=unlimited) as agent:
        yield agent


@pytest.fixture
def site(agent: RealAgent) -> Site:
    return Site.at("agent", agent.address)


def spec(site: Site, *, ttl: float = 10.0) -> SessionSpec:
    return SessionSpec(ttl=ttl, lock_delay=0, name=site.unique, allow_unbounded=True)


def report(line: str) -> None:
    sys.stdout.write(line + "\n")


def raft_index(site: Site) -> int:
    found = site.operator.done("GET", "/v1/agent/self")
    return int(found["Stats"]["raft"]["last_log_index"])


def queued(site: Site) -> list[str]:
    """Return the sessions in the queue, in order."""
    status, text = site.operator.ask("GET", f"/v1/kv/{site.key}/.wait/?recurse")
    found = json.loads(text) if status == 200 else []
    return [each["Session"] for each in sorted(found, key=lambda each: each["CreateIndex"])]


@pytest.mark.slow
def test_thirty_waiters_in_four_processes_are_served_in_order(site: Site, tmp_path: Path) -> None:
    with (
        Client(address=site.address, session=spec(site)) as client,
        Crowd(site, tmp_path, waiters=30, rounds=2, fair=True) as crowd,
    ):
        hold = Lock(client, site.key).acquire(timeout=5)
        crowd.begin()
        order = eventually(lambda: found if len(found := queued(site)) == 30 else [], within=30)
        hold.release()
        crowd.finish()
        turns = crowd.turns()
    assert [turn.session for turn in turns[:30]] == order
    assert turns[0].fence > hold.fence
    assert set(Counter(turn.session for turn in turns).values()) == {2}
    assert site.left_behind() == []


@pytest.mark.slow
def test_a_hold_costs_three_raft_entries_however_many_wait(agent: RealAgent, tmp_path: Path) -> None:
    cost = {waiters: _cost(Site.at("agent", agent.address), tmp_path, waiters) for waiters in (10, 50)}
    report(f"Raft entries per hold: {cost}")
    assert max(cost.values()) <= MOST_ENTRIES
    assert abs(cost[10] - cost[50]) <= 0.2


def _cost(site: Site, folder: Path, waiters: int) -> float:
    rounds = 100 // waiters
    with Client(address=site.address, session=spec(site)) as client:
        Lock(client, site.key).run(
            lambda _: None
        )  # the very first joins, of a key that is not there, cost more
    with Crowd(site, folder, waiters=waiters, rounds=rounds, fair=True) as crowd:
        before = raft_index(site)
        crowd.begin()
        crowd.finish()
        cost = (raft_index(site) - before) / (waiters * rounds)
        crowd.turns()
    assert site.left_behind() == []
    return cost


# -- deaths

WAITER = """
short = SessionSpec(ttl=0.6, lock_delay=0, name=NAME, allow_unbounded=True)
hold = Lock(client, KEY, session=short).acquire()
say(hold.fence)
sys.stdin.readline()
hold.release()
"""


@pytest.mark.parametrize("killed", ["holder", "head", "waiter"])
def test_who_is_killed_is_succeeded(site: Site, killed: str) -> None:
    line: dict[str, Program] = {}
    for place, name in enumerate(("holder", "head", "waiter")):
        line[name] = programs.start(WAITER, site)
        eventually(
            lambda place=place: site.operator.holder(site.key) and len(queued(site)) == place,  # type: ignore[misc]
            within=20,
        )
    fences: list[int] = []
    with Client(address=site.address, session=spec(site)) as client:
        last = threading.Thread(
            target=lambda: fences.append(Lock(client, site.key).run(lambda hold: hold.fence, timeout=20))
        )
        last.start()
        eventually(lambda: len(queued(site)) == 3)
        line[killed].send_signal(signal.SIGKILL)
        living = [process for name, process in line.items() if name != killed]
        served = []
        for process in living:
            served.append(int(process.stdout.readline()))
            process.stdin.write("release\n")
            process.communicate(timeout=20)
        last.join(20)
    line[killed].communicate()
    assert [*served, *fences] == sorted({*served, *fences})
    assert len(fences) == 1
    assert eventually(lambda: site.left_behind() == [], within=5)


# -- beside Go's client


def alternate(binary: Path, site: Site, folder: Path, *, turns: int) -> list[str]:
    """Take the key in turn with ``consul lock``; return what each wrote down while it had it."""
    log = folder / "log"
    log.touch()
    note = f"echo go in >> {log}; echo go out >> {log}"
    command = [str(binary), "lock", f"-http-addr={site.address}", site.unique, note]
    with Client(address=site.address, session=spec(site)) as client:
        lock = Lock(client, f"{site.unique}/.lock")
        for turn in range(turns // 2):
            with lock.hold(timeout=20), log.open("a") as file:
                file.write("py in\n")
                go = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                eventually(lambda: _has_come(site))
                file.write("py out\n")
                file.flush()
            eventually(lambda turn=turn: log.read_text().count("go in") == turn + 1)  # type: ignore[misc]
            lock.run(lambda _: None, timeout=20)
            assert go.wait(20) == 0
    return log.read_text().splitlines()


def _has_come(site: Site) -> bool:
    """Return whether a ``consul lock`` has its session for this test's prefix."""
    names = [each["Name"] for each in site.operator.done("GET", "/v1/session/list")]
    return any(site.unique in name and name.startswith("Consul lock") for name in names)


@pytest.mark.slow
def test_consul_lock_and_ours_alternate(consul_binary: Path, site: Site, tmp_path: Path) -> None:
    lines = alternate(consul_binary, site, tmp_path, turns=60)
    assert lines == ["py in", "py out", "go in", "go out"] * 30


@pytest.mark.long
@pytest.mark.timeout(600)
def test_consul_lock_and_ours_alternate_for_long(consul_binary: Path, site: Site, tmp_path: Path) -> None:
    lines = alternate(consul_binary, site, tmp_path, turns=200)
    assert lines == ["py in", "py out", "go in", "go out"] * 100


# -- a crowd


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("fair", [True, False], ids=["fair", "barging"])
def test_two_hundred_contenders_and_two_thousand_handoffs(site: Site, tmp_path: Path, fair: bool) -> None:
    with (
        Client(address=site.address, session=spec(site)) as client,
        Crowd(site, tmp_path, waiters=200, rounds=10, fair=fair) as crowd,
    ):
        hold = Lock(client, site.key).acquire(timeout=5)
        crowd.begin()
        order = eventually(lambda: found if len(found := queued(site)) == 200 else [], within=120)
        began = time.monotonic()
        hold.release()
        crowd.finish()
        took = time.monotonic() - began
        turns = crowd.turns()
    report(
        f"2,000 handoffs among 200 ({'fair' if fair else 'barging'}): {took:.1f} s, {took / 2:.2f} ms each"
    )
    if fair:
        assert [turn.session for turn in turns[:200]] == order
    assert set(Counter(turn.session for turn in turns).values()) == {10}
    assert site.left_behind() == []
    assert statistics.median(turn.fence for turn in turns) > hold.fence
