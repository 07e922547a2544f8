"""Operators break a hold of each kind: its place alone, or the whole session with all that it has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pytest

from consul_coord import AcquireTimeout, Client, Lock, LossReason, MultiLock, ReadWriteLock
from tests.lock.conftest import spec

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.lock.conftest import MakeClient
    from tests.support.sites import Site

DELAY = 30.0
KINDS: dict[str, Callable[[Client, Site], Lock | MultiLock]] = {
    "lock": lambda client, site: Lock(client, site.key),
    "several keys": lambda client, site: MultiLock(client, [f"{site.key}/a", f"{site.key}/b"]),
    "reader": lambda client, site: _sides(client, site).read,
    "writer": lambda client, site: _sides(client, site).write,
}


def _sides(client: Client, site: Site) -> ReadWriteLock:
    return ReadWriteLock(client, site.key, session=spec(site, lock_delay=DELAY))


@pytest.mark.parametrize("how", ["release", "destroy"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_broken_is_what_was_asked_for_and_whose(
    site: Site, make_client: MakeClient, kind: str, how: Literal["release", "destroy"]
) -> None:
    """The place alone is free at once; the keys of a session that is destroyed keep their lock-delay."""
    holder, operator = make_client(lock_delay=DELAY), make_client()
    hold, seen = KINDS[kind](holder, site).acquire(timeout=5), KINDS[kind](operator, site)
    beside = Lock(holder, f"{site.key}/beside").acquire(timeout=5)
    is_shared, other = beside.session == hold.session, site.operator.create()
    assert not seen.break_lock(other, how=how)
    assert site.operator.exists(other)
    assert hold.verify()
    assert seen.break_lock(hold.session, how=how)
    assert hold.lost.wait(5)
    if how == "destroy":
        assert not site.operator.exists(hold.session)
        assert hold.reason is LossReason.SESSION_GONE
    assert beside.lost.wait(5) if is_shared and how == "destroy" else beside.verify()
    assert not seen.break_lock(hold.session, how=how)
    next_in = KINDS["writer" if kind == "reader" else kind](operator, site)
    if how == "release":
        next_in.acquire(timeout=5).release()
    else:
        with pytest.raises(AcquireTimeout) as told:
            next_in.acquire(timeout=1.0)
        assert told.value.blocker.kind == "lock_delay"
