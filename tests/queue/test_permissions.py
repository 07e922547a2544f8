"""Clients that may not touch the queue contend with clients that may: nobody overlaps, everybody gets in."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from consul_coord import Client, Lock, PermissionDenied, SessionSpec
from consul_coord.server import ReferenceServer, ServerConfig
from consul_coord.server.acl import AclConfig, Rule, Token
from tests.support.proxy import Fault, FaultProxy, Lose
from tests.support.sites import eventually

KEY = "jobs/nightly"
ALL = "0be7a702-0000-0000-0000-000000000000"
KEY_ONLY = "0be7a702-0000-0000-0000-000000000001"
READ_ONLY = "0be7a702-0000-0000-0000-000000000002"
ROUNDS = 8
SESSIONS = Rule("session", "", "write", prefix=True)
ACL = AclConfig(
    tokens={
        ALL: Token(management=True),
        KEY_ONLY: Token((SESSIONS, Rule("key", KEY, "write"))),
        READ_ONLY: Token((SESSIONS, Rule("key", KEY, "read", prefix=True))),
    },
    default_policy="deny",
)


def test_clients_with_and_without_a_queue_exclude_each_other() -> None:
    inside, fences = threading.Semaphore(1), list[int]()

    def work(address: str, token: str) -> None:
        spec = SessionSpec(lock_delay=0, allow_unbounded=True)
        with Client(address=address, token=token, session=spec) as client:
            lock = Lock(client, KEY)
            for _ in range(ROUNDS):
                with lock.hold(timeout=20) as hold:
                    assert inside.acquire(blocking=False), "two hold it"
                    fences.append(hold.fence)
                    inside.release()

    with ReferenceServer(config=ServerConfig(acl=ACL)) as server, ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(work, server.address, token) for token in (ALL, KEY_ONLY) * 2]
        for call in calls:
            call.result(50)
        with Client(address=server.address, token=ALL) as client:
            assert client.kv.keys(f"{KEY}/").value == ()
    assert len(fences) == 4 * ROUNDS
    assert fences == sorted(set(fences))


def test_a_token_that_may_not_write_any_more_is_told_to_a_waiter_whose_take_had_no_answer() -> None:
    with (
        ReferenceServer(config=ServerConfig(acl=ACL)) as server,
        FaultProxy(server.address) as proxy,
        Client(address=server.address, token=ALL) as other,
        Client(address=proxy.address, token=ALL) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        held = Lock(other, KEY).acquire(timeout=5)
        waiting = pool.submit(Lock(client, KEY).acquire, timeout=2)
        assert eventually(Lock(other, KEY).contenders)
        proxy.add(Fault(lose=Lose.REPLY, path="/v1/txn", containing=b'"lock"'))
        trouble = proxy.add(Fault(lose=Lose.AGENT, path="/v1/txn", times=3))
        held.release()
        assert trouble.hit.wait(5)
        client.token = READ_ONLY
        with pytest.raises(PermissionDenied):
            waiting.result()
        client.token = ALL
