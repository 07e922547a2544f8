"""The rules of blocking queries: what to ask with next, what is news, and how fast."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consul_coord.http.blocking import IndexTracker, Pace, next_index, read_timeout
from consul_coord.models import Result


@pytest.mark.parametrize(
    ("asked", "answered", "following"),
    [
        (0, 5, 5),
        (5, 5, 5),
        (5, 9, 9),
        (9, 5, 0),
        (0, 0, 1),
        (1, 0, 1),
        (2, 0, 0),
        (2**64 - 1, 2**64 - 1, 2**64 - 1),
    ],
)
def test_next_index(asked: int, answered: int, following: int) -> None:
    assert next_index(asked, answered) == following


def follow(*answers: Result[str | None]) -> list[tuple[int, bool]]:
    tracker: IndexTracker[str | None] = IndexTracker()
    seen = []
    for answer in answers:
        tracker, news = tracker.advance(answer)
        seen.append((tracker.index, news))
    return seen


def test_the_first_answer_is_news_even_if_there_is_nothing() -> None:
    assert follow(Result(None, 5)) == [(5, True)]


def test_only_another_value_is_news() -> None:
    answers: list[Result[str | None]] = [
        Result("a", 5),
        Result("a", 5),
        Result("a", 9),
        Result("b", 10),
        Result(None, 11),
        Result(None, 12),
    ]
    assert follow(*answers) == [(5, True), (5, False), (9, False), (10, True), (11, True), (12, False)]


def test_an_index_that_goes_back_is_asked_afresh_and_the_data_judged() -> None:
    answers = [Result("a", 50), Result("b", 7), Result("b", 7), Result("b", 8)]
    assert follow(*answers) == [(50, True), (0, True), (7, False), (8, False)]


def test_a_server_that_says_no_index_is_still_waited_on() -> None:
    assert follow(Result("a", 0), Result("a", 0)) == [(1, True), (1, False)]


def test_restart_keeps_what_was_seen() -> None:
    fresh: IndexTracker[str] = IndexTracker()
    tracker, _ = fresh.advance(Result("a", 5))
    assert tracker.restart().index == 0
    assert tracker.restart().advance(Result("a", 6)) == (IndexTracker(6, ("a",)), False)


@given(st.lists(st.builds(Result, st.sampled_from("ab"), st.integers(0, 2**64 - 1)), min_size=1))
def test_each_change_is_told_once(answers: list[Result[str | None]]) -> None:
    told = [answer.value for answer, (_, news) in zip(answers, follow(*answers), strict=True) if news]
    values = [answer.value for answer in answers]
    assert told == [value for at, value in enumerate(values) if at == 0 or values[at - 1] != value]


def test_read_timeout_allows_for_the_servers_jitter() -> None:
    assert read_timeout(16.0, slack=1.0) == 18.0
    assert read_timeout(600.0) > 637.5


def waits(pace: Pace, *times: float, random: float = 0.0) -> list[float]:
    found = []
    for now in times:
        pace, wait = pace.take(now, random)
        found.append(wait)
    return found


def test_a_stock_of_turns_then_a_steady_pace() -> None:
    assert waits(Pace(interval=1, burst=3), 10, 10, 10, 10, 10) == [0, 0, 0, 1, 2]


def test_turns_come_back() -> None:
    assert waits(Pace(interval=1, burst=2), 10, 10, 11, 11, 100, 100, 100) == [0, 0, 0, 1, 0, 0, 1]


def test_a_burst_of_one_keeps_them_apart() -> None:
    assert waits(Pace(interval=2, burst=1), 0, 1, 4) == [0, 1, 0]


def test_jitter_only_lengthens_a_wait() -> None:
    assert waits(Pace(interval=1, burst=1, jitter=0.5), 0, 0, random=1.0) == [0, 1.5]
    assert waits(Pace(interval=1, burst=1, jitter=0.5), 0, 0, random=0.0) == [0, 1]


@given(st.lists(st.floats(0, 5), min_size=1, max_size=200), st.integers(1, 20))
def test_no_more_than_the_stock_and_the_pace_allow(pauses: list[float], burst: int) -> None:
    pace, now, used = Pace(interval=1, burst=burst), 0.0, []
    for pause in pauses:
        now += pause
        pace, wait = pace.take(now, 0.0)
        now += wait
        used.append(now)
    for first, last in zip(used, used[burst:], strict=False):
        assert last - first >= 1 - 1e-6
    assert len(used) <= burst + (used[-1] - used[0]) + 1e-6
