"""A process that gets no thread: the call says so, leaves nothing behind, and the next one may succeed."""

from __future__ import annotations

import _thread
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from consul_coord import (
    AcquireCancelled,
    BackgroundFailed,
    Client,
    LeaderElection,
    Lock,
    ReadWriteLock,
    Semaphore,
)
from tests.interrupts.stage import SPEC, left_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.sites import Site

CALLS: dict[str, Callable[[Client, str], object]] = {
    "lock": lambda client, key: Lock(client, key).acquire(timeout=10),
    "semaphore": lambda client, key: Semaphore(client, key, 1).acquire(timeout=10),
    "write": lambda client, key: ReadWriteLock(client, key).write.acquire(timeout=10),
    "election": lambda client, key: LeaderElection(client, key).start(),
}


def refuse(*_: object) -> int:
    message = "can't start new thread"
    raise RuntimeError(message)


@pytest.mark.parametrize("kind", CALLS)
def test_no_thread_is_an_error_of_our_own_and_leaves_nothing(
    site: Site, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = replace(SPEC, name=site.unique)
    with Client(address=site.address, session=spec) as client:
        with monkeypatch.context() as refused:
            refused.setattr(_thread, "start_new_thread", refuse)
            with pytest.raises(BackgroundFailed, match="ulimit -u"):
                CALLS[kind](client, site.key)
            with pytest.raises(BackgroundFailed):
                CALLS[kind](client, site.key)
        CALLS[kind](client, site.key)
    assert left_in(client) == []
    assert site.left_behind() == []


def lead(client: Client, key: str) -> None:
    election = LeaderElection(client, key)
    election.start()
    election.wait_for_leadership(timeout=10)


@pytest.mark.parametrize("kind", CALLS)
def test_one_thread_for_each_that_is_needed_is_enough(
    site: Site, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one starts it, and serves for it where the system gives no more."""
    spec = replace(SPEC, name=site.unique)
    with Client(address=site.address, session=spec) as client, monkeypatch.context() as refused:
        refused.setattr(threading.Thread, "start", refuse)
        {**CALLS, "election": lead}[kind](client, site.key)
    assert left_in(client) == []
    assert site.left_behind() == []


def test_nobody_waits_for_a_candidate_that_could_not_start(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Client(address=site.address, session=SPEC) as client:
        election = LeaderElection(client, site.key)
        with monkeypatch.context() as refused:
            refused.setattr(_thread, "start_new_thread", refuse)
            with pytest.raises(BackgroundFailed):
                election.start()
        with pytest.raises(AcquireCancelled, match=r"start\(\) stands again"):
            election.wait_for_leadership(timeout=10)
        election.start()
        election.wait_for_leadership(timeout=10)
        assert election.is_leader
