"""Blocking queries: what wakes them, what does not, how long they wait, and the consistency modes."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.support.stalls import lasting

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conformance.target import Answer, Target

SETTLE = 0.15  # a request that has not answered by then is waiting
DEADLINE = 30.0
WAITS = 16  # a chance of 1 in 10^14 that all have the same hundredth of a second added
SLACK = 0.5  # for a machine with other things to do


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as executor:
        yield executor


def blocked(pool: ThreadPoolExecutor, target: Target, path: str, wait: str = "8s") -> Future[Answer]:
    index = target.get(path).index
    separator = "&" if "?" in path else "?"
    watch = pool.submit(target.get, f"{path}{separator}index={index}&wait={wait}")
    with pytest.raises(TimeoutError):
        watch.result(SETTLE)
    return watch


def change(target: Target, what: str, session: str) -> None:
    key = target.key("d/k")
    {
        "write": lambda: target.put(f"/v1/kv/{key}", b"w"),
        "flags": lambda: target.put(f"/v1/kv/{key}?flags=1", b"v"),
        "acquire": lambda: target.put(f"/v1/kv/{key}?acquire={session}", b"v"),
        "delete": lambda: target.delete(f"/v1/kv/{key}"),
        "delete tree": lambda: target.delete(f"/v1/kv/{target.key('d')}?recurse"),
        "new sibling": lambda: target.put(f"/v1/kv/{target.key('d/new')}", b"v"),
        "txn": lambda: target.txn({"Verb": "set", "Key": key, "Value": "dw=="}),
        "destroy": lambda: target.put(f"/v1/session/destroy/{session}"),
    }[what]()


@pytest.mark.parametrize(
    ("path", "what"),
    [
        *(("key", what) for what in ("write", "flags", "acquire", "delete", "delete tree", "txn")),
        *(("tree", what) for what in ("write", "delete", "delete tree", "new sibling", "txn")),
        ("keys", "write"),
        ("session", "destroy"),
        ("sessions", "destroy"),
        ("node", "destroy"),
    ],
)
def test_what_wakes(target: Target, pool: ThreadPoolExecutor, path: str, what: str) -> None:
    session = target.session()
    target.put(f"/v1/kv/{target.key('d/k')}", b"v")
    target.put(f"/v1/kv/{target.key('d/l')}", b"v")
    paths = {
        "key": f"/v1/kv/{target.key('d/k')}",
        "tree": f"/v1/kv/{target.key('d/')}?recurse",
        "keys": f"/v1/kv/{target.key('d/')}?keys",
        "session": f"/v1/session/info/{session}",
        "sessions": "/v1/session/list",
        "node": f"/v1/session/node/{target.node}",
    }
    before = target.get(paths[path]).index
    watch = blocked(pool, target, paths[path])
    change(target, what, session)
    assert watch.result(DEADLINE).index > before


@pytest.mark.parametrize("path", ["key", "tree", "session"])
def test_what_does_not_wake(target: Target, pool: ThreadPoolExecutor, path: str) -> None:
    session, other = target.session(TTL="10s"), target.session()
    target.put(f"/v1/kv/{target.key('d/k')}", b"v")
    paths = {
        "key": f"/v1/kv/{target.key('d/k')}",
        "tree": f"/v1/kv/{target.key('d/')}?recurse",
        "session": f"/v1/session/info/{session}",
    }
    watch = blocked(pool, target, paths[path], wait="2s")
    before = target.get(paths[path])
    target.put(f"/v1/kv/{target.key('d/k')}", b"v")
    target.put(f"/v1/kv/{target.key('e')}", b"v")
    if path == "key":
        target.put(f"/v1/kv/{target.key('d/k/child')}", b"v")
    target.put(f"/v1/session/renew/{session}")
    target.put(f"/v1/session/destroy/{other}")
    with pytest.raises(TimeoutError):
        watch.result(SETTLE)
    assert watch.result(DEADLINE).json == before.json


def test_a_missing_key_wakes_when_it_is_made(target: Target, pool: ThreadPoolExecutor) -> None:
    key = target.key("absent")
    target.put(f"/v1/kv/{target.key('other')}", b"v")
    watch = blocked(pool, target, f"/v1/kv/{key}")
    target.put(f"/v1/kv/{key}", b"v")
    assert watch.result(DEADLINE).status == 200


def test_a_wait_ends_in_its_time_with_the_same_data(target: Target) -> None:
    key = target.key()
    target.put(f"/v1/kv/{key}", b"v")
    before = target.get(f"/v1/kv/{key}")
    with lasting(least=0.79, most=1.5):
        after = target.get(f"/v1/kv/{key}?index={before.index}&wait=800ms")
    assert (after.status, after.json, after.index) == (200, before.json, before.index)


def test_up_to_a_sixteenth_is_added_to_a_wait(target: Target) -> None:
    """Never less than the wait, never much more than 17/16 of it, and not always the same."""
    key = target.key()
    target.put(f"/v1/kv/{key}", b"v")
    index = target.get(f"/v1/kv/{key}").index

    def waited(_: int) -> float:
        began = time.monotonic()
        assert target.get(f"/v1/kv/{key}?index={index}&wait=1600ms").status == 200
        return time.monotonic() - began

    with ThreadPoolExecutor(WAITS) as executor:
        took = sorted(executor.map(waited, range(WAITS)))
    assert took[0] >= 1.6
    assert took[0] < 1.7 + SLACK
    assert took[-1] < 1.7 + 4 * SLACK
    assert took[-1] - took[0] > 0.01


@pytest.mark.parametrize("wait", ["0s", "-1s", ""])
def test_no_wait_is_the_usual_wait(target: Target, pool: ThreadPoolExecutor, wait: str) -> None:
    key = target.key()
    target.put(f"/v1/kv/{key}", b"v")
    watch = blocked(pool, target, f"/v1/kv/{key}", wait=wait)
    target.put(f"/v1/kv/{key}", b"w")
    assert watch.result(DEADLINE).json[0]["Value"] == "dw=="


def test_the_last_instance_of_a_service_that_is_renamed(target: Target, pool: ThreadPoolExecutor) -> None:
    """The catalog tells its watchers. Those of its health wait on, unless the agent streams it to them."""
    node, name = f"node-{target.unique}", f"web-{target.unique}"
    register = {"Node": node, "Address": "10.0.0.9"}
    target.put("/v1/catalog/register", {**register, "Service": {"ID": "w", "Service": name}})
    gone = {**register, "Service": {"ID": "gone", "Service": f"gone-{target.unique}"}}
    target.put("/v1/catalog/register", gone)
    target.put("/v1/catalog/deregister", {"Node": node, "ServiceID": "gone"})
    try:
        listed = blocked(pool, target, f"/v1/catalog/service/{name}")
        began = time.monotonic()
        healthy = blocked(pool, target, f"/v1/health/service/{name}", wait="2s")
        target.put("/v1/catalog/register", {**register, "Service": {"ID": "w", "Service": f"other-{name}"}})
        assert listed.result(DEADLINE).json == []
        told = healthy.result(DEADLINE)
        assert told.status == 200
        is_streamed = told.headers["X-Consul-Query-Backend"] == "streaming"
        assert (time.monotonic() - began < 2.0) is is_streamed
    finally:
        target.put("/v1/catalog/deregister", {"Node": node})


def test_sessions_share_one_index(target: Target) -> None:
    session = target.session()
    target.session()
    paths = (f"/v1/session/info/{session}", "/v1/session/list", f"/v1/session/node/{target.node}")
    before = [target.get(path).index for path in paths]
    target.session()
    after = [target.get(path).index for path in paths]
    assert max(before) < min(after)


def test_a_deleted_last_key_wakes_its_prefix(target: Target, pool: ThreadPoolExecutor) -> None:
    target.put(f"/v1/kv/{target.key('d/k')}", b"v")
    watch = blocked(pool, target, f"/v1/kv/{target.key('d/')}?recurse")
    target.delete(f"/v1/kv/{target.key('d/k')}")
    answer = watch.result(DEADLINE)
    assert (answer.status, answer.body) == (404, b"")


def test_a_tree_deleted_from_above_wakes_nobody_where_older_deletions_are_known(
    target: Target, pool: ThreadPoolExecutor
) -> None:
    """The tree's index is that of the older deletion then: it goes back, which ends no query."""
    for key in ("d/e/k", "d/e/l"):
        target.put(f"/v1/kv/{target.key(key)}", b"v")
        target.delete(f"/v1/kv/{target.key('d/e/k')}")
    watch = blocked(pool, target, f"/v1/kv/{target.key('d/e/')}?recurse", wait="2s")
    target.delete(f"/v1/kv/{target.key('d')}?recurse")
    with pytest.raises(TimeoutError):
        watch.result(1.0)
    assert watch.result(DEADLINE).status == 404


def test_an_index_from_the_future_waits_its_full_time(target: Target, pool: ThreadPoolExecutor) -> None:
    key = target.key()
    target.put(f"/v1/kv/{key}", b"v")
    future = target.entry(key)["ModifyIndex"] + 1_000_000
    began = time.monotonic()
    watch = pool.submit(target.get, f"/v1/kv/{key}?index={future}&wait=2s")
    with pytest.raises(TimeoutError):
        watch.result(SETTLE)
    target.put(f"/v1/kv/{key}", b"w")
    ended = watch.result(DEADLINE)
    assert time.monotonic() - began >= 2.0
    assert ended.index < future
    assert ended.json[0]["Value"] == "dw=="


@pytest.mark.parametrize(
    "query",
    [
        *("index=0&wait=5s", "index=&wait=5s", "wait=5s", "index=1&wait=5s"),
        *(f"index=1&wait={'0' * 5_000}5s", f"index=1&wait=0.{'5' * 5_000}s"),
    ],
    ids=range(6),
)
def test_answers_at_once(target: Target, query: str) -> None:
    key = target.key()
    target.put(f"/v1/kv/{key}", b"v")
    with lasting(most=2.0):
        assert target.get(f"/v1/kv/{key}?{query}").status == 200


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("wait=5", "Invalid wait time"),
        ("wait=abc", "Invalid wait time"),
        (f"wait={'9' * 5_000}s", "Invalid wait time"),
        ("index=abc", "Invalid index"),
        ("index=-1", "Invalid index"),
        ("index=1.5", "Invalid index"),
        ("index=18446744073709551616", "Invalid index"),
        ("stale&consistent", "Cannot specify ?stale with ?consistent, conflicting semantics."),
        ("cached&consistent", "Cannot specify ?cached with ?consistent, conflicting semantics."),
        ("max_stale=abc", 'Invalid max_stale value "abc"'),
    ],
)
def test_bad_options(target: Target, query: str, text: str) -> None:
    for path in ("/v1/kv/k", "/v1/session/list", "/v1/catalog/nodes"):
        answer = target.get(f"{path}?{query}")
        assert (answer.status, answer.text) == (400, text)


@pytest.mark.parametrize("mode", ["", "consistent", "stale", "cached", "max_stale=10s"])
def test_consistency_modes(target: Target, mode: str) -> None:
    key = target.key()
    target.put(f"/v1/kv/{key}", b"v")
    answer = target.get(f"/v1/kv/{key}?{mode}")
    assert answer.json[0]["Key"] == key
    assert answer.headers["X-Consul-KnownLeader"] == "true"
    nodes = target.get(f"/v1/catalog/nodes?{mode}")
    effective = {"": "leader", "consistent": "consistent", "cached": "leader"}.get(mode, "stale")
    assert nodes.headers["X-Consul-Effective-Consistency"] == effective
