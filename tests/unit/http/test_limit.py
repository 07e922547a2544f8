"""What a client makes of connections that an agent refuses."""

from __future__ import annotations

import pytest

from consul_coord.http.transport.limit import ALONE, LEAST, PATIENT, REMEMBERED, STEP, Limit


def pauses(limit: Limit, refusals: int) -> list[float]:
    found = list[float]()
    for _ in range(refusals):
        limit.refused(1000.0)
        found.append(limit._next_try - 1000.0)
    return found


@pytest.mark.parametrize("was_refused", [False, True], ids=["new", "admitted"])
@pytest.mark.parametrize("now", [0.0, 0.5 * REMEMBERED, 1000.0])
def test_who_has_room_knows_of_no_limit_at_whatever_time_its_clock_began(
    now: float, *, was_refused: bool
) -> None:
    """A machine's clock begins with its start, and so may a client."""
    limit, reported = Limit(), list[float]()
    limit.on_refusal = lambda: reported.append(now)
    if was_refused:
        limit.ended(now)
        limit.refused(now)
        limit.admitted()
        now += LEAST
    assert not limit.is_near(now)
    assert not limit.has_refused_since(now)
    assert not limit.has_refused_since(0.0)
    assert limit.is_blamed(now)
    assert limit.pause(now, others=True) == 0.0
    limit.refused(now)
    assert reported == []
    limit.refused(now)
    assert reported == [now]


def test_one_refusal_alone_is_not_reported() -> None:
    limit, reported = Limit(), list[float]()
    for now in (1000.0, 1001.0, 1002.0):
        limit.on_refusal = lambda now=now: reported.append(now)  # type: ignore[misc]
        limit.refused(now)
    assert reported == [1001.0, 1002.0]


def test_a_refusal_amid_connections_that_end_is_not_put_down_to_the_limit() -> None:
    limit, reported = Limit(), list[float]()
    limit.on_refusal = lambda: reported.append(1.0)
    limit.ended(1000.0)
    for _ in range(3):
        limit.refused(1001.0)
    assert reported == []
    limit.refused(1000.0 + REMEMBERED)
    assert reported == [1.0]


def test_amid_connections_that_end_no_pause_is_long_as_it_may_be_an_outage() -> None:
    limit = Limit(lambda: 1.0)
    assert max(pauses(limit, PATIENT + 1)) > 3 * LEAST
    limit.ended(1000.0)
    assert limit._next_try == 1000.0 + LEAST
    assert max(pauses(limit, 20)) == LEAST
    limit.ended(1000.0 - LEAST / 2)
    assert limit._next_try == 1000.0 + LEAST / 2


def test_those_who_see_a_connection_end_do_not_all_try_at_once() -> None:
    tries = list[float]()
    for random in (0.0, 0.5, 1.0):
        limit = Limit(lambda random=random: random)  # type: ignore[misc]
        pauses(limit, PATIENT)
        limit._next_try = 1000.0 + 2 * LEAST
        limit.ended(1000.0)
        tries.append(limit._next_try - 1000.0)
    assert tries == [0.0, LEAST / 2, LEAST]


def test_of_those_who_wait_for_room_the_one_who_waited_longest_tries_most_often() -> None:
    waits, stepped_aside = Limit(lambda: 1.0), Limit(lambda: 1.0)
    before = pauses(waits, 20)
    stepped_aside.step_aside(1000.0)
    after = pauses(stepped_aside, 20)
    assert before[:5] == sorted(before[:5])
    assert after == sorted(after, reverse=True)
    assert min(before[-1], after[-1]) >= 1.0
    assert after[0] >= 3 * before[-1]


def test_a_refusal_is_remembered_for_a_while_or_until_a_connection_is_answered() -> None:
    limit = Limit()
    assert not limit.is_near(1000.0)
    limit.refused(1000.0)
    assert limit.is_near(1000.0 + REMEMBERED - 0.1)
    assert not limit.is_near(1000.0 + REMEMBERED)
    limit.refused(2000.0)
    limit.admitted()
    assert not limit.is_near(2000.0)


def test_once_a_connection_is_answered_the_next_refusal_is_a_first_one() -> None:
    limit, reported = Limit(lambda: 1.0), list[str]()
    limit.on_refusal = lambda: reported.append("one more")
    before, told = pauses(limit, PATIENT + 2), len(reported)
    limit.ended(1000.0)
    limit.admitted()
    assert pauses(limit, PATIENT + 2) == before
    assert len(reported) == 2 * told


def test_a_connection_that_may_become_free_is_looked_for_more_often() -> None:
    limit = Limit()
    limit.refused(1000.0)
    assert limit.pause(1000.0, others=True) == STEP < limit.pause(1000.0, others=False) == ALONE
    assert limit.pause(1000.0 + 60.0, others=False) == 0.0
