"""One blocking query for all of a client that wait for the same: whom its answer serves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from consul_coord.errors import ConsulCoordError
from consul_coord.http.endpoints import kv
from consul_coord.io import Signal
from consul_coord.models.reply import CONSISTENT
from consul_coord.recipes.watch.shared_queries import SharedQueries
from tests.support.fake_io import FakeIO
from tests.support.replies import entry, lost, pairs, refusal

if TYPE_CHECKING:
    from consul_coord.http.messages import Call, Request, Response
    from consul_coord.models import KVPair, ReadOptions, Result

PATH = "/v1/kv/k"
CHANGED = pairs(entry("k", index=9))


def query(
    *, index: int = 7, wait: float = 10.0, options: ReadOptions | None = None
) -> Call[Result[KVPair | None]]:
    return kv.watch("k", index=index, wait=wait, options=options)


def ask(
    io: FakeIO,
    queries: SharedQueries,
    call: Call[Result[KVPair | None]],
    *,
    until: Signal | None = None,
    deadline: float | None = None,
    caller: object = None,
) -> bool:
    """Return whether there was an answer; by a thread or task of its own unless ``caller`` is given."""
    before, io.caller = io.caller, caller or object()
    try:
        asked = queries.ask(io, call, until=until, deadline=deadline)
        return io.run(asked) is not None
    finally:
        io.caller = before


class Two:
    """A query, and another one that is asked for while it is under way."""

    def __init__(self, *, first: Call[Result[KVPair | None]] | None = None) -> None:
        self.io = FakeIO()
        self.queries = SharedQueries(self.io.mutex())
        self.first = first or query()

    def ask(self, call: Call[Result[KVPair | None]], until: Signal | None = None) -> bool:
        """Return whether the second one was sent, too."""
        sent: list[bool] = []

        def amid(_: Request) -> Response:
            self.io.expect("GET", PATH, CHANGED)
            before = len(self.io.requests)
            ask(self.io, self.queries, call, until=until, deadline=self.io.now() + 1.0)
            sent.append(len(self.io.requests) > before)
            return CHANGED

        self.io.expect("GET", PATH, amid)
        assert ask(self.io, self.queries, self.first)
        return sent[0]


@pytest.mark.usefixtures("more_than_asked")
def test_whoever_waits_for_the_same_from_the_same_index_sends_nothing() -> None:
    assert not Two().ask(query())


def test_a_signal_handler_waits_for_no_query_of_the_thread_that_it_interrupts() -> None:
    io = FakeIO()
    queries, thread = SharedQueries(io.mutex()), object()

    def interrupted(_: Request) -> Response:
        io.expect("GET", PATH, CHANGED)
        assert ask(io, queries, query(), caller=thread)
        return CHANGED

    io.expect("GET", PATH, interrupted)
    began = io.now()
    assert ask(io, queries, query(), caller=thread)
    assert io.now() == began
    assert not queries._running


def test_another_index_or_key_is_asked_for() -> None:
    assert Two().ask(query(index=8))
    assert Two().ask(kv.watch_to_the_end("k", index=7, wait=10.0))


@pytest.mark.usefixtures("more_than_asked")
def test_an_answer_that_is_due_too_late_serves_nobody() -> None:
    assert Two().ask(query(wait=5.0))
    assert not Two().ask(query(wait=20.0))


@pytest.mark.usefixtures("more_than_asked")
def test_only_a_consistent_answer_serves_who_needs_one() -> None:
    assert Two().ask(query(options=CONSISTENT))
    assert not Two(first=query(options=CONSISTENT)).ask(query())


@pytest.mark.usefixtures("more_than_asked")
def test_the_wait_for_anothers_answer_can_be_ended() -> None:
    two, over = Two(), Signal()
    two.io.at(two.io.now() + 0.1, over.set)
    began = two.io.now()
    assert not two.ask(query(), over)
    assert two.io.now() < began + 0.5


@pytest.mark.parametrize("fails", [True, False])
def test_a_query_that_is_over_serves_nobody(*, fails: bool) -> None:
    io = FakeIO()
    queries = SharedQueries(io.mutex())
    io.expect("GET", PATH, refusal(500) if fails else CHANGED, CHANGED)
    if fails:
        with pytest.raises(ConsulCoordError):
            ask(io, queries, query())
    else:
        ask(io, queries, query())
    io.shown.clear()  # another caller asks, which has not seen the change
    assert ask(io, queries, query())
    assert len(io.requests) == 2


def test_a_query_that_is_overdue_serves_nobody_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its caller was interrupted just before it could say so."""
    io = FakeIO()
    queries = SharedQueries(io.mutex())
    monkeypatch.setattr(queries, "_end", lambda _: None)
    io.expect("GET", PATH, lost(PATH), CHANGED)
    with pytest.raises(ConsulCoordError):
        ask(io, queries, query(wait=5.0))
    began = io.now()
    assert not ask(io, queries, query(wait=5.0))
    assert 5.0 < io.now() - began < 8.0
    assert ask(io, queries, query(wait=5.0))


def test_a_query_that_ends_without_an_answer_has_the_others_look_how_long_the_next_may_last() -> None:
    io = FakeIO()
    queries = SharedQueries(io.mutex())

    def amid(_: Request) -> Response:
        (running,) = queries._running.values()
        io.at(io.now() + 4.0, lambda: queries._end(running))
        assert not ask(io, queries, query(wait=5.0)), "a query of 5 s would go on beyond the next renewal"
        return CHANGED

    io.expect("GET", PATH, amid)
    began = io.now()
    ask(io, queries, query(wait=5.0))
    assert io.now() == began + 4.0
    assert len(io.requests) == 1
