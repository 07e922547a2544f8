"""The driver for tooz: its own test-suite, and what that does not ask."""

from __future__ import annotations

import base64
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord import Client, Lock, SessionSpec
from consul_coord.integrations._names import id_of, name_of
from tests.election.waiting import until
from tests.integrations import pages
from tests.support.proxy import Fault, FaultProxy, Lose
from tests.support.sites import never

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytest.importorskip("tooz", reason="needs tooz, of the group integrations")
pytest.importorskip("testtools", reason="needs testtools, of the group integrations")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # eventlet warns of itself, and tooz imports it where it is installed
    from consul_coord.integrations.tooz import ConsulDriver

SUITES = ("tooz.tests.test_coordination", "tooz.tests.test_partitioner")
SKIPPED = {
    "test_get_shared_lock": "locks are not shared",
    "test_get_shared_lock_locking_same_lock_twice": "locks are not shared",
    "test_get_shared_lock_locking_two_lock": "locks are not shared",
    "test_get_lock_locking_shared_and_exclusive": "locks are not shared",
    "test_get_lock_locking_exclusive_and_shared": "locks are not shared",
    "test_timeout": "members live as long as their process, not as long as somebody beats",
    "test_watch_join_group_disappear": "asks for some drivers by their class",
}
"""Each test of tooz that does not run, and why."""


@pytest.mark.long
def test_the_suite_of_tooz_passes(address: str) -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:consul_coord", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-c", os.devnull, "-n", "4", "-v", "--pyargs", *SUITES],
        env={**os.environ, "TOOZ_TEST_URL": url_of(address), "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5_000:]
    outcomes = re.findall(r"(PASSED|SKIPPED|FAILED|ERROR|XFAIL|XPASS) .*::(test_\w+)", done.stdout)
    assert {name for outcome, name in outcomes if outcome == "SKIPPED"} == set(SKIPPED)
    assert {outcome for outcome, _ in outcomes} == {"PASSED", "SKIPPED"}
    assert len(outcomes) >= 98


@pytest.mark.slow
def test_the_page_runs(address: str, tmp_path: Path) -> None:
    quiet = 'import warnings\nwarnings.simplefilter("ignore")\n'  # as above
    program = quiet + pages.blocks("migrating-from-tooz", "python")[0]
    assert pages.run(program, folder=tmp_path, address=address).startswith("fence ")


def url_of(address: str, query: str = "ttl=15") -> str:
    return address.replace("http://", "consul://") + f"?{query}"


class Coordinators:
    """Makes coordinators that are stopped at the end."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.started: list[Any] = []

    def __call__(self, member: bytes, *, query: str = "ttl=15", path: str = "") -> Any:
        from tooz import coordination

        url = url_of(self.address + path, query)
        found = coordination.get_coordinator(url, member)
        found.start()
        self.started.append(found)
        return found


@pytest.fixture
def coordinator(address: str) -> Iterator[Coordinators]:
    coordinators = Coordinators(address)
    yield coordinators
    for one in coordinators.started:
        if one.is_started:
            one.stop()


@pytest.fixture
def operator(address: str) -> Iterator[Client]:
    with Client(address=address) as client:
        yield client


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (b"host-1", "host-1"),
        ("host-1", "host-1"),
        ("Zürich".encode(), "Zürich"),
        (b"a/b", "~612f62"),
        (b"~tilde", "~7e74696c6465"),
        (b"\xff", "~ff"),
        (b" edge", "~2065646765"),
        (b"100%20", "~313030253230"),
        (b"..", "~2e2e"),
    ],
)
def test_every_id_has_a_name_of_its_own(given: bytes | str, name: str) -> None:
    assert name_of(given) == name
    assert id_of(name) == (given.encode() if isinstance(given, str) else given)


@pytest.mark.parametrize(
    ("query", "path", "namespace"),
    [("ttl=15", "", "tooz"), ("ttl=15", "/other", "other"), ("namespace=third", "/other", "third")],
)
def test_the_namespace_comes_from_the_url(
    coordinator: Coordinators, operator: Client, query: str, path: str, namespace: str
) -> None:
    one = coordinator(b"host-1", query=query, path=path)
    with one.get_lock(b"jobs/nightly") as lock:
        pair = operator.kv.get(f"{namespace}/locks/jobs/nightly").value
        assert pair is not None
        assert pair.session is not None
        assert pair.value == b"host-1"
        assert lock.fence == pair.modify_index


@pytest.mark.parametrize(
    ("query", "ttl", "lock_delay"),
    [("ttl=20&lock_delay=7", 20.0, 7.0), ("ttl=20", 20.0, 20.0), ("ttl=90", 90.0, 60.0), ("", 15.0, 15.0)],
)
def test_sessions_have_the_ttl_and_the_name_that_were_asked_for(
    coordinator: Coordinators, operator: Client, query: str, ttl: float, lock_delay: float
) -> None:
    one = coordinator(b"host-1", query=query)
    with one.get_lock(b"nightly"):
        (session,) = [found for found in operator.session.list().value if found.name.startswith("host-1")]
        assert (session.ttl, session.lock_delay, session.behavior) == (ttl, lock_delay, "release")
    assert one.heartbeat() == ttl / 2


def test_a_lock_of_the_former_driver_is_excluded(coordinator: Coordinators, operator: Client) -> None:
    """It locked the same key, with the flags 0 and the session's id as the value."""
    session = operator.session.create(SessionSpec(ttl=15))
    assert operator.kv.acquire("tooz/locks/nightly", session, value=session)
    lock = coordinator(b"host-1").get_lock(b"nightly")
    assert lock.acquire(blocking=False) is False
    operator.kv.release("tooz/locks/nightly", session)
    assert lock.acquire(blocking=10) is True
    assert not operator.kv.acquire("tooz/locks/nightly", session)
    assert lock.release() is True


def test_a_lock_waits_for_so_many_seconds(coordinator: Coordinators) -> None:
    one, other = coordinator(b"one").get_lock(b"nightly"), coordinator(b"other").get_lock(b"nightly")
    with one:
        assert one.is_still_owner()
        started = time.monotonic()
        assert other.acquire(blocking=0.2) is False
        assert time.monotonic() - started >= 0.2
        waiting = threading.Thread(target=other.acquire)
        waiting.start()
    waiting.join()
    assert other.acquired
    assert other.heartbeat()
    assert other.release()


def test_a_group_has_a_leader_for_as_long_as_one_leads(coordinator: Coordinators) -> None:
    one, other = coordinator(b"one"), coordinator(b"other")
    one.create_group(b"led").get()
    elected: list[Any] = []
    for member in (one, other):
        member.watch_elected_as_leader(b"led", elected.append)
    for leading, waiting in ((one, other), (other, one)):
        assert waiting.get_leader(b"led").get() is None
        assert leading.stand_down_group_leader(b"led") is False
        leading.run_watchers()
        waiting.run_watchers()
        assert waiting.get_leader(b"led").get() == elected[-1].member_id == leading._member_id
        assert waiting.stand_down_group_leader(b"led") is False
        assert leading.stand_down_group_leader(b"led") is True
    assert one.get_leader(b"led").get() is None
    assert len(elected) == 2
    one.delete_group(b"led").get()


def test_a_member_that_lost_its_session_comes_back(coordinator: Coordinators, operator: Client) -> None:
    one = coordinator(b"host-1")
    one.join_group_create(b"web", {"port": 80})
    pair = operator.kv.get("tooz/groups/web/members/4/host-1").value
    assert pair is not None
    operator.session.destroy(str(pair.session))

    def is_back() -> bool:
        now = operator.kv.get("tooz/groups/web/members/4/host-1").value
        return now is not None and now.session not in {None, pair.session}

    until(is_back, "it has joined again")
    assert one.get_members_with_capabilities(b"web").get() == {b"host-1": {"port": 80}}


@pytest.mark.slow
def test_a_member_that_was_removed_does_not_come_back(coordinator: Coordinators, operator: Client) -> None:
    one, other = coordinator(b"host-1"), coordinator(b"host-2")
    one.join_group_create(b"web")
    operator.kv.delete("tooz/groups/web/members/4/host-1")
    until(lambda: not one._groups[b"web"].joined, "the removal is noticed")
    other.join_group(b"web").get()
    assert other.get_members(b"web").get() == {b"host-2"}
    one.join_group(b"web").get()
    assert other.get_members(b"web").get() == {b"host-1", b"host-2"}


@pytest.mark.slow
def test_a_member_that_leaves_while_it_is_lost_does_not_come_back(reference_address: str) -> None:
    from tooz import coordination

    with FaultProxy(reference_address) as proxy:
        one: Any = coordination.get_coordinator(
            url_of(proxy.address, "ttl=15&lock_delay=1&timeout=2"), b"one"
        )
        one.start()
        one.join_group_create(b"web")
        group = one._groups[b"web"]
        with Client(address=reference_address) as operator:
            (member,) = group.members()
            proxy.go_down()
            until(lambda: not group.joined, "its lease is over")
            with pytest.raises(coordination.ToozError):
                one.leave_group(b"web").get()
            operator.session.destroy(member.session)
            proxy.come_up()
            one.heartbeat()
            never(lambda: operator.kv.keys("tooz/groups/web/members/").value, within=1.0)
        one.stop()


def test_a_join_that_fails_at_its_end_leaves_no_member(reference_address: str) -> None:
    from tooz import coordination

    with FaultProxy(reference_address) as proxy, Client(address=reference_address) as operator:
        one: Any = coordination.get_coordinator(url_of(proxy.address), b"one")
        one.start()
        one.create_group(b"web").get()
        locking = proxy.add(Fault(lose=Lose.TIME, path="/v1/txn", containing=b'"lock"'))
        join = one.join_group(b"web")
        assert locking.hit.wait(20)
        denied: dict[str, Any] = {"status": 403, "body": b"Permission denied", "times": 10_000}
        proxy.add(Fault(lose=Lose.AGENT, method="GET", path="/v1/kv/tooz/groups/web", **denied))
        locking.let_go()
        with pytest.raises(coordination.ToozError):
            join.get()
        assert not operator.kv.keys("tooz/groups/web/members/").value
        proxy.clear()
        one.join_group(b"web").get()
        one.stop()


@pytest.mark.slow
def test_a_lost_member_that_joins_and_leaves_does_not_come_back(reference_address: str) -> None:
    from tooz import coordination

    with FaultProxy(reference_address) as proxy, Client(address=reference_address) as operator:
        one: Any = coordination.get_coordinator(url_of(proxy.address), b"one")
        one.start()
        one.join_group_create(b"web")
        group = one._groups[b"web"]
        (member,) = group.members()
        denied: dict[str, Any] = {"status": 403, "body": b"Permission denied", "times": 10_000}
        proxy.add(Fault(lose=Lose.AGENT, path="/v1/txn", containing=b'"lock"', **denied))
        operator.session.destroy(member.session)
        until(lambda: group.problem is not None, "it can't join again")
        proxy.clear()
        with suppress(coordination.MemberAlreadyExist):  # it has just joined again by itself
            one.join_group(b"web").get()
        one.leave_group(b"web").get()
        never(lambda: operator.kv.keys("tooz/groups/web/members/").value, within=3.0)
        one.stop()


def test_trouble_is_not_told_as_somebody_else(reference_address: str) -> None:
    from tooz import coordination

    with FaultProxy(reference_address) as proxy:
        one: Any = coordination.get_coordinator(url_of(proxy.address, "ttl=15&timeout=1"), b"one")
        one.start()
        one.create_group(b"web").get()
        lock = one.get_lock(b"nightly")
        proxy.add(Fault(lose=Lose.AGENT, method="PUT", path="/v1/session/create", times=10_000))
        for call in (one.join_group(b"web").get, lambda: lock.acquire(blocking=False)):
            with pytest.raises(coordination.ToozError) as caught:
                call()
            assert not isinstance(caught.value, coordination.MemberAlreadyExist)
        proxy.clear()
        one.stop()


@pytest.mark.slow
def test_stopping_without_an_answer_takes_no_longer_for_many_groups(reference_address: str) -> None:
    from tooz import coordination

    with FaultProxy(reference_address) as proxy:
        one: Any = coordination.get_coordinator(url_of(proxy.address), b"one")
        one.start()
        for number in range(8):
            one.join_group_create(b"web-%d" % number)
        proxy.add(Fault(lose=Lose.TIME, times=10_000))
        started = time.monotonic()
        one.stop()
        assert time.monotonic() - started < 30
        proxy.clear()


def test_what_other_programs_wrote_stops_no_listing(coordinator: Coordinators, operator: Client) -> None:
    one = coordinator(b"one", path="/foreign")
    namespace = one._namespace
    one.create_group(b"g").get(timeout=10)
    one.join_group(b"g").get(timeout=10)
    operator.kv.put(f"{namespace}/groups/~zz", b"")
    assert set(one.get_groups().get(timeout=10)) == {b"g", b"~zz"}
    with Lock(operator, f"{namespace}/leaders/g", value=b"\xff").hold(timeout=10):
        assert one.get_leader(b"g").get(timeout=10) is not None


@pytest.mark.parametrize(("authority", "sent"), [("me:a%40b@", b"me:a@b"), ("me@", b"me:"), ("", None)])
def test_the_urls_user_and_password_are_sent(authority: str, sent: bytes | None) -> None:
    """A proxy before the agent may ask for them."""
    from tooz import coordination

    heads: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                heads.append(connection.recv(10_000))

        listening = threading.Thread(target=answer)
        listening.start()
        coordinator: Any = coordination.get_coordinator(
            f"consul://{authority}127.0.0.1:{port}?timeout=1", b"me"
        )
        with pytest.raises(coordination.ToozError):
            coordinator.start()
        listening.join()
    found = re.search(rb"authorization: basic (\S+)", heads[0], re.IGNORECASE)
    assert (None if found is None else base64.b64decode(found[1])) == sent


def test_stopping_leaves_all_groups(coordinator: Coordinators, operator: Client) -> None:
    one = coordinator(b"one")
    for name in (b"web", b"db"):
        one.join_group_create(name)
    one.stop()
    assert not [key for key in operator.kv.keys("tooz/groups/").value if "/members/" in key]


@pytest.mark.parametrize(
    ("query", "match"),
    [
        ("ttl=soon", "ttl must be a number of seconds, not 'soon'"),
        ("lock_delay=x", "lock_delay must be"),
        ("timeout=1s", "timeout must be"),
        ("ttl=-1", "ttl must be"),
    ],
)
def test_an_option_that_can_not_be_is_refused_by_name(query: str, match: str) -> None:
    from tooz import coordination

    with pytest.raises(coordination.ToozError, match=match):
        coordination.get_coordinator(f"consul://127.0.0.1:1?{query}", b"host-1")


@pytest.mark.parametrize("port", ["x", "99999"])
def test_a_port_that_can_not_be_is_refused(port: str) -> None:
    from tooz import coordination

    with pytest.raises(coordination.ToozError, match="the port of the URL must be a number from 1 to 65535"):
        coordination.get_coordinator(f"consul://127.0.0.1:{port}", b"host-1")


@pytest.mark.parametrize(("authority", "port"), [("[::1]", 8500), ("[::1]:8501", 8501)])
def test_an_agent_may_have_an_ipv6_address(authority: str, port: int) -> None:
    from tooz import coordination

    one: Any = coordination.get_coordinator(f"consul://{authority}", b"host-1")
    with Client(one._settings["address"]) as client:
        assert repr(client) == f"<Client of http://[::1]:{port}>"


PROGRAM = """
import sys, time, warnings
warnings.simplefilter("ignore")
from tooz import coordination
one = coordination.get_coordinator(sys.argv[1], b"one")
one.start(start_heart=True)
one.join_group_create(b"web")
one.watch_elected_as_leader(b"web", lambda event: print("elected", flush=True))
one.run_watchers()
time.sleep(60)
"""


@pytest.mark.slow
def test_a_killed_leader_is_succeeded_and_leaves_the_group(real_agent: Any) -> None:
    """TTL and lock-delay are a second each: the agent's shortest TTL is 0.2 s."""
    query = "ttl=1&lock_delay=1"
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, url_of(real_agent.address, query)], stdout=subprocess.PIPE, text=True
    )
    coordinators = Coordinators(real_agent.address)
    events: list[Any] = []
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "elected\n"
        other = coordinators(b"other", query=query)
        other.watch_leave_group(b"web", events.append)
        other.watch_elected_as_leader(b"web", events.append)
        other.run_watchers()
        assert other.get_leader(b"web").get() == b"one"
        assert events == []
        process.send_signal(signal.SIGKILL)
        until(lambda: other.run_watchers() is not None and len(events) == 2, "left, and succeeded")
        assert {type(event).__name__ for event in events} == {"MemberLeftGroup", "LeaderElected"}
        assert other.get_leader(b"web").get() == b"other"
    finally:
        process.kill()
        process.communicate()
        for one in coordinators.started:
            one.stop()


def test_an_agent_that_is_not_there_is_told_soon() -> None:
    from tooz import coordination

    one = coordination.get_coordinator("consul://127.0.0.1:1", b"host-1")
    started = time.monotonic()
    with pytest.raises(coordination.ToozConnectionError):
        one.start()
    assert time.monotonic() - started < 8
    with pytest.raises(coordination.ToozError, match="call start"):
        one.get_lock(b"nightly")


def test_https_has_its_options() -> None:
    from tooz import coordination

    one: Any = coordination.get_coordinator(
        "consul+https://consul.example?verify=false&acl_token=t", b"host-1"
    )
    assert isinstance(one, ConsulDriver)
    settings = one._settings
    assert settings["address"] == "https://consul.example:8500"
    assert settings["tls"].verify is False
    assert settings["token"] == "t"


def test_locks_of_both_kinds_of_users_exclude_each_other(coordinator: Coordinators, operator: Client) -> None:
    with coordinator(b"host-1").get_lock(b"nightly"):
        assert Lock(operator, "tooz/locks/nightly").try_acquire() is None
