"""What one reading of a lock and its queue means: for any content of the folder, in any order."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consul_coord.models import KVPair
from consul_coord.recipes.contend import queue as waitqueue
from consul_coord.recipes.contend.queue import Look, Rejoin
from consul_coord.recipes.lock.waitqueue import Adopt, Follow, Gone, Lead, is_head, judge

KEY = "jobs/nightly"
NOBODY = "ffffffff-ffff-ffff-ffff-ffffffffffff"

anything = settings(deadline=None, max_examples=60)  # a busy machine is no failure

sessions = st.integers(0, 0xFFFF).map(lambda number: f"{number:08x}-abcd-0000-beef-{number:012x}")
spelled = sessions.flatmap(lambda session: st.sampled_from([session, session.upper()]))


def contender(session: str, index: int, *, held_by: str | None = None, key: str = KEY) -> KVPair:
    return KVPair(
        f"{key}/.wait/{session}", session=held_by or session, create_index=index, modify_index=index + 1
    )


def remains(session: str, index: int) -> KVPair:
    return replace(contender(session, index), session=None)


def lock(session: str | None, index: int = 5) -> KVPair:
    return KVPair(KEY, session=session, create_index=2, modify_index=index)


queues = st.lists(spelled, unique_by=str.lower, max_size=8).flatmap(
    lambda queue: st.permutations(range(10, 10 + len(queue))).map(
        lambda indices: [contender(*each) for each in zip(queue, indices, strict=True)]
    )
)
"""Contenders in the order of their names, with places in any order."""
held = st.one_of(st.none(), st.builds(lock, st.one_of(st.none(), sessions)))

foreign_names = st.one_of(
    st.text(max_size=12),
    sessions.map(lambda session: session + "/x"),
    sessions.map(lambda session: "x/" + session),
    sessions.map(lambda session: session[:-1]),
    sessions.map(lambda session: session + "0"),
    sessions.map(lambda session: session.replace("-", "")),
    sessions.map(lambda session: session + "\n"),
)
strangers = st.builds(
    lambda name, session: KVPair(f"{KEY}/.wait/{name}", session=session, create_index=1, modify_index=1),
    foreign_names,
    st.one_of(st.none(), sessions),
)
elsewhere = st.builds(
    lambda key, session: contender(session, 1, key=key),
    st.sampled_from([KEY + "/sub", "jobs", KEY + "2", "x/" + KEY, ""]),
    sessions,
)


def read(pairs: list[KVPair], pair: KVPair | None = None) -> Look:
    return waitqueue.read(KEY, [*([] if pair is None else [pair]), *pairs])


# -- reading


@anything
@given(queues, held)
def test_the_order_is_that_of_creation(queue: list[KVPair], pair: KVPair | None) -> None:
    look = read(queue, pair)
    assert look.pair == pair
    assert list(look.live) == sorted(queue, key=lambda each: each.create_index)
    assert look.dead == ()


@anything
@given(queues.flatmap(st.permutations), held)
def test_the_order_of_a_reply_means_nothing(shuffled: list[KVPair], pair: KVPair | None) -> None:
    ordered = sorted(shuffled, key=lambda each: each.key)
    assert read(shuffled, pair) == read(ordered, pair)
    assert waitqueue.read(KEY, [*shuffled, *([] if pair is None else [pair])]) == read(ordered, pair)


@anything
@given(queues, st.data())
def test_who_has_no_session_is_dead_and_has_no_place(queue: list[KVPair], data: st.DataObject) -> None:
    gone = data.draw(st.sets(st.integers(0, max(0, len(queue) - 1)), max_size=len(queue)))
    now = [replace(each, session=None) if place in gone else each for place, each in enumerate(queue)]
    look = read(now)
    assert {each.key for each in look.dead} == {each.key for each in now if each.session is None}
    assert list(look.live) == sorted(
        (each for each in now if each.session), key=lambda each: each.create_index
    )


@anything
@given(queues, st.lists(st.one_of(strangers, elsewhere), max_size=6), held)
def test_foreign_names_are_left_alone(
    queue: list[KVPair], foreign: list[KVPair], pair: KVPair | None
) -> None:
    assert read([*foreign, *queue], pair) == read(queue, pair)


@anything
@given(sessions, sessions)
def test_a_contender_that_another_session_holds_is_none(session: str, other: str) -> None:
    look = read([contender(session, 9, held_by=other)])
    assert (look.live, look.dead) == ((() if session != other else look.live), ())
    assert look.position(session) == (None if session != other else 0)


@anything
@given(spelled)
def test_a_contender_names_its_session(session: str) -> None:
    key = waitqueue.contender_key(KEY, session)
    assert waitqueue.session_of(contender(session, 3)) == session
    assert key == contender(session, 3).key
    assert key.startswith(waitqueue.directory(KEY))


@anything
@given(queues, spelled)
def test_others_are_all_but_oneself(queue: list[KVPair], session: str) -> None:
    alone = [each for each in queue if each.session == session]
    look = read(queue)
    assert look.others(session) == (len(queue) > len(alone))
    assert all(look.position(each.session or "") == place for place, each in enumerate(look.live))
    assert read([]).others(session) is False


@anything
@given(queues, st.integers(0, 9))
def test_the_dead_are_no_others(queue: list[KVPair], index: int) -> None:
    assert not read([replace(each, session=None) for each in queue]).others(NOBODY)


# -- judging


@anything
@given(queues, held, sessions)
def test_a_key_that_is_ours_is_adopted_whatever_the_queue(
    queue: list[KVPair], pair: KVPair | None, session: str
) -> None:
    assert judge(read(queue, lock(session)), session) == Adopt()
    mine = [*queue, contender(session, 99)]
    assert judge(read(mine, lock(session)), session) == Adopt()


@anything
@given(queues, held)
def test_without_a_contender_one_joins_again(queue: list[KVPair], pair: KVPair | None) -> None:
    assert judge(read(queue, pair), NOBODY) == Rejoin()
    assert judge(read([*queue, remains(NOBODY, 1)], pair), NOBODY) == Rejoin()
    assert judge(read([*queue, contender(NOBODY, 1, held_by="else")], pair), NOBODY) == Rejoin()


@anything
@given(queues.filter(bool), held)
def test_everybody_follows_the_nearest_and_one_leads(queue: list[KVPair], pair: KVPair | None) -> None:
    holder = pair.session if pair is not None else None
    look = read(queue, pair)
    ordered = sorted(queue, key=lambda each: each.create_index)
    for place, own in enumerate(ordered):
        assert own.session is not None
        verdict = judge(look, own.session)
        if own.session == holder:
            assert verdict == Adopt()
        elif place:
            assert verdict == Follow(own, ordered[place - 1], place)
        else:
            assert verdict == Lead(own, pair if holder else None)


@anything
@given(queues.filter(bool), st.data())
def test_a_death_concerns_the_follower_alone(queue: list[KVPair], data: st.DataObject) -> None:
    dead = data.draw(st.sampled_from(queue))
    before = read(queue)
    after = read([remains(dead.session or "", each.create_index) if each is dead else each for each in queue])
    place = before.position(dead.session or "") or 0
    for each in after.live:
        session = each.session or ""
        was, now = judge(before, session), judge(after, session)
        watched_before = was.predecessor if isinstance(was, Follow) else None
        watched_now = now.predecessor if isinstance(now, Follow) else None
        assert (watched_before != watched_now) == (before.position(session) == place + 1)


@pytest.mark.parametrize("held_by", [None, NOBODY])
def test_the_head_takes_a_free_key_and_watches_a_held_one(held_by: str | None) -> None:
    own = contender("00000000-0000-0000-0000-000000000001", 7)
    pair = lock(held_by)
    verdict = judge(read([own], pair), own.session or "")
    assert verdict == Lead(own, pair if held_by else None)
    assert judge(read([own], None), own.session or "") == Lead(own, None)


# -- moving up without a listing

BEFORE = "00000000-0000-0000-0000-000000000001"
OWN = contender("00000000-0000-0000-0000-000000000002", 8)
MADE_AGAIN = replace(OWN, create_index=30, modify_index=30)


@pytest.mark.parametrize(
    ("pairs", "moved_up"),
    [
        pytest.param([lock(BEFORE, 20), OWN], True, id="the one before took it in its turn"),
        pytest.param([lock(BEFORE, 21), OWN], False, id="it left, and took the key in another way"),
        pytest.param([lock(NOBODY, 20), OWN], False, id="another one has it"),
        pytest.param([lock(None, 20), OWN], False, id="the key is free"),
        pytest.param([OWN], False, id="the key is absent"),
        pytest.param([lock(BEFORE, 20)], False, id="our contender has gone"),
        pytest.param([lock(BEFORE, 20), replace(OWN, session=None)], False, id="our session has ended"),
        pytest.param([lock(BEFORE, 20), MADE_AGAIN], False, id="ours was made again at the end of the queue"),
    ],
)
def test_a_waiter_moves_up_only_when_the_one_before_took_the_key_in_its_turn(
    pairs: list[KVPair], moved_up: bool
) -> None:
    assert is_head(waitqueue.read(KEY, pairs), OWN, Gone(BEFORE, 20)) is moved_up
