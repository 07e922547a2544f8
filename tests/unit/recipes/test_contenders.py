"""What users are told of those that wait is what the servers say of them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord.models import LOCK_FLAGS, Contender, SessionSpec
from consul_coord.recipes.client import ClientState
from consul_coord.recipes.contend import queue
from consul_coord.recipes.lock import lock as locks
from consul_coord.recipes.lock.lock import LockObject
from consul_coord.recipes.lock.plan import LockPlan
from consul_coord.recipes.rwlock import lock as rwlocks
from consul_coord.recipes.rwlock.queue import base_of, marked
from consul_coord.recipes.semaphore import semaphore as semaphores
from consul_coord.recipes.semaphore import slots
from tests.support.fake_io import FakeIO
from tests.support.replies import OTHER, SESSION, entry, pairs
from tests.unit.recipes.test_call_times import RECORD, SEMAPHORE

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


INSIDE = "33333333-3333-3333-3333-333333333333"
FIRST, SECOND = 11, 17
"""When the contenders were made; each was written once more since."""


def waits(key: str, session: str, *, born: int, value: bytes) -> dict[str, object]:
    return entry(key, session=session, index=born + 3, value=value) | {"CreateIndex": born}


def queued(key: str, value: Callable[[bytes], bytes] = bytes) -> list[dict[str, object]]:
    """Return two contenders of a key, as the servers list them: by their names."""
    folder = queue.directory(key)
    return [
        waits(folder + SESSION, SESSION, born=SECOND, value=value(b"second")),
        waits(folder + OTHER, OTHER, born=FIRST, value=value(b"first")),
    ]


def of_a_lock(io: FakeIO, client: ClientState) -> Coroutine[Any, Any, tuple[Contender, ...]]:
    io.expect("GET", "/v1/kv/k/.wait/", pairs(*queued("k")))
    return locks.contenders(io, client, LockObject(LockPlan(keys=("k",), value=b"")))


def of_writers(io: FakeIO, client: ClientState) -> Coroutine[Any, Any, tuple[Contender, ...]]:
    base = base_of("k")
    folder = queue.directory(base)
    inside = waits(folder + INSIDE, INSIDE, born=5, value=marked("write", b""))
    waiting = queued(base, partial(marked, "write"))
    io.expect("GET", f"/v1/kv/{folder}", pairs(*waiting, inside))
    _, writers = rwlocks.sides("k", value=b"", flags=LOCK_FLAGS, session=None)
    return rwlocks.contenders(io, client, writers)


def of_a_semaphore(io: FakeIO, client: ClientState) -> Coroutine[Any, Any, tuple[Contender, ...]]:
    waiting = [
        {**each, "Key": str(each["Key"]).replace("/.wait", ""), "Flags": RECORD["Flags"]}
        for each in queued("s", slots.waiting)
    ]
    io.expect("GET", "/v1/kv/s/", pairs(RECORD, *waiting))
    return semaphores.contenders(io, client, SEMAPHORE)


@pytest.mark.parametrize("ask", [of_a_lock, of_writers, of_a_semaphore])
def test_contenders_are_told_in_order_with_their_indexes(
    ask: Callable[[FakeIO, ClientState], Coroutine[Any, Any, tuple[Contender, ...]]],
) -> None:
    io = FakeIO()
    client = ClientState(io, spec=SessionSpec(ttl=15.0), timeout=10.0)
    found = io.run(ask(io, client))
    assert [
        (each.session, each.position, each.value, each.create_index, each.modify_index) for each in found
    ] == [(OTHER, 1, b"first", FIRST, FIRST + 3), (SESSION, 2, b"second", SECOND, SECOND + 3)]
