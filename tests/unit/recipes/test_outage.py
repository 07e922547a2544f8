"""Outages of a client with several sessions: one beginning and one end each."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from consul_coord.events import OutageBegan, OutageEnded
from consul_coord.recipes.session.outage import Outages

LAST = " unless contact comes back"


@pytest.fixture
def outages() -> Outages:
    return Outages(nullcontext())


def test_it_begins_with_the_first_session_and_ends_with_the_last(outages: Outages) -> None:
    assert outages.succeeded("a") is None
    assert [outages.failed(one, since=5.0) for one in ("a", "b", "a", "b")] == [True, False, False, False]
    assert outages.succeeded("a") is None, "b still fails"
    assert outages.succeeded("b") == 5.0
    assert outages.succeeded("b") is None
    assert outages.failed("b", since=9.0), "another one"


def test_a_session_that_is_over_waits_for_no_success(outages: Outages) -> None:
    outages.failed("a", since=5.0)
    outages.failed("b", since=6.0)
    outages.forget("a")
    assert outages.succeeded("c") is None, "b still fails"
    outages.forget("b")
    assert outages.succeeded("c") == 5.0


@pytest.mark.parametrize(
    ("event", "sentence"),
    [
        (
            OutageBegan("no", 6.0, 8.25, ("a", "b", "c", "d", "e")),
            f"no contact with Consul for 6.0 s (no): a, b, c and 2 more stay held for another 8.2 s{LAST}",
        ),
        (
            OutageBegan("refused", 6.0, 0.0),
            "no contact with Consul for 6.0 s (refused): this client holds nothing, and tries again",
        ),
        (
            OutageEnded(9.0, float("inf"), ("a",)),
            "contact with Consul is back after 9.0 s: a stays held",
        ),
    ],
)
def test_its_sentences(event: OutageBegan | OutageEnded, sentence: str) -> None:
    assert event.describe() == sentence
