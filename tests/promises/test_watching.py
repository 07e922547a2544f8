"""A watch goes on after any failure: what is done to a hold is noticed while there is contact."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from consul_coord import LOCK_FLAGS, Client, Lock, LossReason, MultiLock, ReadWriteLock, Semaphore
from consul_coord.recipes.watch import engine
from tests.promises.conftest import SPEC
from tests.support.proxy import Fault, Lose
from tests.support.sites import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord import Hold, Permit
    from tests.support.proxy import FaultProxy
    from tests.support.sites import Operator

NOTICED: Final = 5.0
"""Seconds within which a loss must be noticed after a watch has failed: a pause, and a second query."""


def watched(proxy: FaultProxy, key: str) -> bool:
    """Return whether somebody has asked to be told of changes of a key."""
    return any(
        each.method == "GET" and each.path.startswith(f"/v1/kv/{key}") and "index=" in each.path
        for each in list(proxy.requests)
    )


FAILURES: dict[str, Callable[[str], Fault]] = {
    "the request is lost": lambda path: Fault(path=path, lose=Lose.REQUEST),
    "no leader": lambda path: Fault(path=path, lose=Lose.AGENT),
    "rate limited": lambda path: Fault(path=path, lose=Lose.AGENT, status=429, body=b""),
    "unavailable": lambda path: Fault(path=path, lose=Lose.AGENT, status=503, body=b"not the leader"),
    "not from Consul": lambda path: Fault(path=path, lose=Lose.AGENT, status=200, body=b"<html>"),
}
RELEASES: dict[str, tuple[Callable[[Operator, Hold | Permit], object], LossReason]] = {
    "released": (
        lambda operator, hold: operator.put(hold.key, b"", release=hold.session, flags=LOCK_FLAGS),
        LossReason.RELEASED_BY_OTHER,
    ),
    "deleted": (lambda operator, hold: operator.delete(hold.key), LossReason.KEY_DELETED),
}


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("failure", FAILURES)
def test_a_key_watch_that_failed_once_still_notices_an_operator(
    proxy: FaultProxy, client: Client, operator: Operator, failure: str, release: str
) -> None:
    key = "promises/watched"
    fault = proxy.add(FAILURES[failure](f"/v1/kv/{key}?"))
    hold = Lock(client, key).acquire(timeout=5)
    assert fault.hit.wait(5), "nobody watches the key"
    act, reason = RELEASES[release]
    act(operator, hold)
    assert hold.lost.wait(NOTICED), "the watch has ended"
    assert hold.reason is reason


def test_a_key_watch_whose_connection_breaks_still_notices_an_operator(
    proxy: FaultProxy, client: Client, operator: Operator, key: str
) -> None:
    hold = Lock(client, key).acquire(timeout=5)
    for _ in range(3):
        before = len(proxy.requests)
        eventually(lambda: watched(proxy, key))
        proxy.cut()
        eventually(lambda seen=before: len(proxy.requests) > seen)  # type: ignore[misc]
    operator.delete(key)
    assert hold.lost.wait(NOTICED)
    assert hold.reason is LossReason.KEY_DELETED


def test_the_very_answer_that_tells_of_a_loss_may_be_lost(
    proxy: FaultProxy, client: Client, operator: Operator, key: str
) -> None:
    fault = proxy.add(Fault(lose=Lose.REPLY, method="GET", path=f"/v1/kv/{key}?"))
    hold = Lock(client, key).acquire(timeout=5)
    assert fault.hit.wait(5)
    operator.delete(key)
    assert hold.lost.wait(NOTICED)


def test_a_session_watch_that_failed_once_still_notices_the_end(
    proxy: FaultProxy, client: Client, operator: Operator, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "MOST", 0)  # its holds share readings, then
    fault = proxy.add(Fault(lose=Lose.AGENT, method="GET", path="/v1/session/info/"))
    hold = Lock(client, key).acquire(timeout=5)
    assert fault.hit.wait(5), "nobody watches the session"
    eventually(lambda: proxy.count("GET", "/v1/session/info/") >= 2, within=NOTICED)
    operator.destroy(hold.session)
    assert hold.lost.wait(NOTICED)
    assert hold.reason is LossReason.SESSION_GONE


@pytest.mark.parametrize("kind", ["multi", "read", "write", "permit"])
def test_the_watches_of_the_other_recipes_outlast_a_failure(
    proxy: FaultProxy, client: Client, operator: Operator, key: str, kind: str
) -> None:
    proxy.add(Fault(lose=Lose.AGENT, method="GET", path="/v1/kv/", times=2))
    take: dict[str, Callable[[], Hold | Permit]] = {
        "multi": lambda: MultiLock(client, [f"{key}/a", f"{key}/b"]).acquire(timeout=5),
        "read": lambda: ReadWriteLock(client, key, session=SPEC).read.acquire(timeout=5),
        "write": lambda: ReadWriteLock(client, key, session=SPEC).write.acquire(timeout=5),
        "permit": lambda: Semaphore(client, key, 1).acquire(timeout=5),
    }
    hold = take[kind]()
    eventually(lambda: watched(proxy, key))
    operator.done("DELETE", f"/v1/kv/{key}?recurse")
    assert hold.lost.wait(NOTICED)
