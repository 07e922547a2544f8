"""Who has it: what keys show by default, and whom a timeout names."""

from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from consul_coord import (
    AcquireTimeout,
    Client,
    InvalidArgument,
    LeaderElection,
    Lock,
    MultiLock,
    Once,
    ReadWriteLock,
    ReentrantLock,
    Semaphore,
    leader,
)
from tests.lock import programs
from tests.lock.test_acquire import waiting
from tests.support.proxy import Fault, Lose
from tests.support.sites import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord import Hold
    from tests.lock.conftest import MakeClient
    from tests.support.proxy import FaultProxy
    from tests.support.sites import Site


def here() -> bytes:
    return f"{socket.gethostname()}:{os.getpid()}".encode()


def test_without_a_value_the_key_shows_host_and_process(site: Site, make_client: MakeClient) -> None:
    client = make_client()
    lock = Lock(client, site.key)
    with lock:
        assert _value(lock) == here()
    semaphore, shared = Semaphore(client, f"{site.key}/slots", 1), ReadWriteLock(client, f"{site.key}/rw")
    with semaphore as permit, shared.read:
        (holder,) = semaphore.holders()
        assert (holder.session, holder.value) == (permit.session, here())
        assert [one.value for one in shared.holders()] == [holder.value]


def test_in_a_forked_child_it_is_the_childs_process(site: Site) -> None:
    program = """
with lock:
    say(client.kv.get(KEY).value.value.decode().endswith(f":{os.getpid()}"))
pid = os.fork()
if pid == 0:
    with lock:
        os._exit(0 if client.kv.get(KEY).value.value.decode().endswith(f":{os.getpid()}") else 1)
_, status = os.waitpid(pid, 0)
say(status)
"""
    assert programs.run(program, site) == ["True", "0"]


def of_a_leader(client: Client, key: str, given: bytes | str) -> bytes:
    with LeaderElection(client, key, value=given) as election:
        election.wait_for_leadership(timeout=20)
        found = leader(client, key)
    assert found is not None
    return found.value


def of_a_job(client: Client, key: str, given: bytes | str) -> bytes:
    result = Once(client, key, value=given).run(lambda _: _value(Lock(client, key)), slot="1", timeout=20)
    assert result.value is not None
    assert result.by == result.value.decode(errors="replace")
    return result.value


def of_a_permit(client: Client, key: str, given: bytes | str) -> bytes:
    with Semaphore(client, key, 1, value=given) as permit:
        (holder,) = Semaphore(client, key, 1).holders()
        assert holder.session == permit.session
        return holder.value


def of_a_lock(lock: Lock) -> bytes:
    with lock:
        return _value(lock)


SHOWN: dict[str, Callable[[Client, str, bytes | str], bytes]] = {
    "lock": lambda client, key, given: of_a_lock(Lock(client, key, value=given)),
    "reentrant": lambda client, key, given: of_a_lock(ReentrantLock(client, key, value=given)),
    "multi": lambda client, key, given: of_a_lock(MultiLock(client, [key, f"{key}/b"], value=given)),
    "read": lambda client, key, given: of_a_lock(ReadWriteLock(client, key, value=given).read),
    "write": lambda client, key, given: of_a_lock(ReadWriteLock(client, key, value=given).write),
    "permit": of_a_permit,
    "leader": of_a_leader,
    "job": of_a_job,
}


@pytest.mark.parametrize(("given", "shown"), [(b"", b""), ("ü", "ü".encode()), (b"\xff", b"\xff")])
@pytest.mark.parametrize("kind", SHOWN)
def test_a_value_is_shown_as_it_is(
    site: Site, make_client: MakeClient, kind: str, given: bytes | str, shown: bytes
) -> None:
    assert SHOWN[kind](make_client(), site.key, given) == shown


def test_a_client_may_have_a_name_of_its_own(site: Site, make_client: MakeClient) -> None:
    lock = Lock(make_client(client_name="billing-7"), site.key)
    with lock:
        assert _value(lock) == b"billing-7"


def test_a_name_is_text() -> None:
    with pytest.raises(InvalidArgument, match="client_name must be"):
        Client(client_name=7)  # type: ignore[arg-type]


def _value(lock: Lock) -> bytes:
    holder = lock.holder()
    assert holder is not None
    return holder.value


def test_a_timeout_names_holder_node_and_place(site: Site, make_client: MakeClient, held: Hold) -> None:
    node = _node(held, make_client())
    with ThreadPoolExecutor(1) as pool:
        first = Lock(make_client(), site.key)
        call = waiting(first, pool, timeout=30)
        with pytest.raises(AcquireTimeout) as late:
            Lock(make_client(), site.key).acquire(timeout=1.0)
        first.cancel()
        assert call.exception(5) is not None
    (holder,) = late.value.blocker.holders
    assert (holder.session, holder.value, holder.node) == (held.session, here(), node)
    assert late.value.blocker.position == 2
    assert late.value.waited >= 1.0
    said = str(late.value)
    assert "not acquired within 1.0 s" in said
    assert f"held by {here().decode()} (node {node}, session {held.session})" in said
    assert "; place 2 in the queue" in said


def _node(hold: Hold, client: Client) -> str:
    session = client.session.info(hold.session).value
    assert session is not None
    return session.node


@pytest.mark.slow
def test_it_names_who_took_the_lock_while_the_call_waited_behind_others(
    site: Site, make_client: MakeClient, held: Hold
) -> None:
    with ThreadPoolExecutor(2) as pool:
        second = Lock(make_client(), site.key, value="second")
        call = waiting(second, pool, timeout=30)
        late = pool.submit(Lock(make_client(), site.key).acquire, timeout=3.0)
        eventually(lambda: len(second.contenders()) == 2)  # one that does not queue yet might pass
        held.release()
        hold = call.result(10)
        error = late.exception(10)
    assert isinstance(error, AcquireTimeout)
    assert f"held by second (node {_node(hold, make_client())}," in str(error)
    hold.release()


def test_what_the_token_may_not_see_is_unknown(
    site: Site, proxy: FaultProxy, make_client: MakeClient, held: Hold
) -> None:
    proxy.add(Fault(lose=Lose.AGENT, path="/v1/session/info", status=403, times=99))
    with pytest.raises(AcquireTimeout, match=f"node unknown, session {held.session}"):
        Lock(make_client(address=proxy.address), site.key).acquire(timeout=1.0)


def test_nothing_is_asked_after_the_deadline(
    site: Site, proxy: FaultProxy, make_client: MakeClient, held: Hold
) -> None:
    lock = Lock(make_client(address=proxy.address), site.key)
    with pytest.raises(AcquireTimeout):
        lock.acquire(timeout=1.0)
    asked = [passed.path for passed in proxy.requests]
    last = max(number for number, path in enumerate(asked) if path.startswith("/v1/session/info"))
    # Only the last watch, and what gives up the place in the queue.
    after = [path for path in asked[last + 1 :] if "/.wait/" not in path]
    assert {path.split("?")[0] for path in after} <= {f"/v1/kv/{site.key}", "/v1/txn"}
    assert held.is_held


def test_another_thread_of_the_same_client_is_named(client: Client, site: Site) -> None:
    lock = Lock(client, site.key, value="the other thread")
    with lock as hold, ThreadPoolExecutor(1) as pool:
        error = pool.submit(lock.acquire, timeout=0.1).exception(5)
    assert isinstance(error, AcquireTimeout)
    assert f"held by 'the other thread' (node unknown, session {hold.session})" in str(error)
