"""What candidates tell each other beside the key: which note counts when."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from consul_coord import KVPair, LossReason
from consul_coord.errors import TransportError
from consul_coord.recipes.cleanup.tasks import SWEEPS
from consul_coord.recipes.contend import queue as waitqueue
from consul_coord.recipes.election import notes
from consul_coord.recipes.election.leadership import LeadershipView
from consul_coord.recipes.election.term import Term
from tests.support.fake_io import FakeIO
from tests.support.replies import SESSION, entry, lost, ok, pairs, txn_done, txn_failed, unreachable
from tests.unit.recipes.test_heirs import leading

if TYPE_CHECKING:
    from consul_coord.http.messages import Request, Response

KEY = "service/leader"
LEADER, HEIR, OTHER = (f"{number}0000000-0000-0000-0000-000000000000" for number in (1, 2, 3))


def contender(session: str, index: int) -> KVPair:
    name = waitqueue.contender_key(KEY, session)
    return KVPair(name, session=session, create_index=index, modify_index=index)


HELD = KVPair(KEY, session=LEADER, modify_index=10)
NOTE = KVPair(notes.heir_key(KEY), value=HEIR.encode(), modify_index=20)
QUEUE = (contender(OTHER, 12), contender(HEIR, 14))


def test_notes_are_read_with_the_queue_and_taken_for_no_contender() -> None:
    pairs = (HELD, *QUEUE, NOTE, KVPair(notes.term_key(KEY), value=b"x", modify_index=9))
    look = waitqueue.read(KEY, pairs)
    assert [pair.session for pair in look.live] == [OTHER, HEIR]
    assert look.dead == ()
    assert notes.find(notes.heir_key(KEY), pairs) == NOTE
    assert notes.find(notes.heir_key("another"), pairs) is None
    assert notes.heir_of(NOTE) == HEIR


@pytest.mark.parametrize(
    ("pair", "queue", "counts"),
    [
        (HELD, QUEUE, True),  # written, not resigned yet
        (replace(HELD, session=None, modify_index=21), QUEUE, True),  # the vacancy it is for
        (None, QUEUE, True),
        (replace(HELD, session=OTHER, modify_index=22), QUEUE, False),  # somebody was quicker
        (replace(HELD, session=None, modify_index=21), QUEUE[:1], False),  # the heir has left
        (HELD, (QUEUE[0], replace(QUEUE[1], session=None)), False),  # the heir's session has ended
    ],
)
def test_an_heirs_note_counts_for_one_vacancy_while_the_heir_waits(
    pair: KVPair | None, queue: tuple[KVPair, ...], *, counts: bool
) -> None:
    look = waitqueue.read(KEY, (*((pair,) if pair else ()), *queue, NOTE))
    assert notes.counts(NOTE, look) is counts


@pytest.mark.parametrize(
    ("value", "term"),
    [
        (None, 10),
        (notes.election_value(LEADER), 10),  # elected, and has not written the key since
        (notes.term_value(LEADER, 7), 7),
        (notes.term_value(OTHER, 7), 10),  # an earlier leader's
        (b"", 10),
        (b"\xff\xfe", 10),
        (f"{LEADER} 7 8".encode(), 10),
        (f"{LEADER} x".encode(), 10),
        (f"{LEADER} {'9' * 21}".encode(), 10),
        (f"{LEADER} -7".encode(), 10),
    ],
)
def test_the_term_is_told_by_the_note_of_this_leader_else_by_the_key(value: bytes | None, term: int) -> None:
    note = None if value is None else KVPair(notes.term_key(KEY), value=value, modify_index=11)
    assert notes.term_of(HELD, note) == term


def test_the_note_of_the_election_tells_the_term_also_when_others_have_written_the_key_since() -> None:
    note = KVPair(notes.term_key(KEY), value=notes.election_value(LEADER), modify_index=HELD.modify_index)
    assert notes.term_of(replace(HELD, modify_index=HELD.modify_index + 5), note) == HELD.modify_index


@pytest.mark.parametrize("looks", [0, 2])
@pytest.mark.parametrize("answered", [False, True])
def test_the_note_of_a_term_is_removed_once_the_key_is_given_back(*, answered: bool, looks: int) -> None:
    """Until then it tells the term, or may still come, if its write got no answer."""
    io = FakeIO()
    core, handle = leading(io)
    term, note = Term(core), notes.term_key("k")
    written = entry(note, session=None, index=9, value=notes.term_value(SESSION, handle.grant.fence))
    held, given_back = [entry("k", index=7)] * 2, txn_failed((0, "failed session check"))
    if answered:
        io.expect("PUT", "/v1/txn", txn_done(*held, written))
        io.run(term.note(io, handle.grant))
    else:
        io.expect("PUT", "/v1/txn", lost(), *[unreachable()] * 100)
        with pytest.raises(TransportError):
            io.run(term.note(io, handle.grant))
        io.steps.clear()
    began = io.time
    term.remove(handle.grant)
    if not answered:
        io.expect("DELETE", f"/v1/kv/{note}", ok(value=False))  # it is no longer as the election wrote it
    io.expect("PUT", "/v1/txn", *[txn_done(*held)] * looks, given_back)
    io.expect("GET", f"/v1/kv/{note}", pairs(written))
    io.expect("DELETE", f"/v1/kv/{note}", ok(value=True))
    io.run_spawned("reaper")
    assert ("cas", "9") in io.requests[-1].params
    assert not io.steps
    assert io.sent_at[-1] == pytest.approx(began + (1 + looks) * SWEEPS[0], abs=0.1)


def test_the_note_of_an_election_is_removed_as_that_has_written_it() -> None:
    io = FakeIO()
    core, handle = leading(io)
    note = notes.term_key("k")
    Term(core).remove(handle.grant)
    io.shown[note] = [handle.grant.fence]
    io.expect("DELETE", f"/v1/kv/{note}", ok(value=True))
    io.run_spawned("reaper")
    assert ("cas", str(handle.grant.fence)) in io.requests[-1].params


def test_a_note_that_is_under_way_as_the_leadership_ends_is_removed() -> None:
    """It is applied after the first look for it, and before the key is given back."""
    io = FakeIO()
    core, handle = leading(io)
    term, note = Term(core), notes.term_key("k")
    applied: list[dict[str, object]] = []
    io.shown[note] = [handle.grant.fence]  # the election wrote it

    def apply(_: Request) -> Response:
        term.remove(handle.grant)
        written = entry(note, session=None, index=9, value=notes.term_value(SESSION, handle.grant.fence))
        applied.append(written)
        return txn_done(*[entry("k", index=7)] * 2, written)

    def delete(request: Request) -> Response:
        if fits := bool(applied) and ("cas", "9") in request.params:
            applied.clear()
        return ok(value=fits)

    io.expect("PUT", "/v1/txn", apply)
    io.run(term.note(io, handle.grant))
    io.expect("DELETE", f"/v1/kv/{note}", delete)
    io.expect("PUT", "/v1/txn", txn_done(*[entry("k", index=7)] * 2), txn_failed((0, "failed session check")))
    io.expect("GET", f"/v1/kv/{note}", lambda _: pairs(*applied))
    io.expect("DELETE", f"/v1/kv/{note}", delete)
    io.run_spawned("reaper")
    assert not applied


def test_a_note_that_was_refused_is_written_by_the_next_that_is_proclaimed() -> None:
    io = FakeIO()
    core, handle = leading(io)
    term, note = Term(core), entry(notes.term_key("k"), session=None, index=9)
    io.expect(
        "PUT", "/v1/txn", txn_failed((1, "Permission denied")), txn_done(*[entry("k", index=7)] * 2, note)
    )
    for _ in range(3):
        io.run(term.note(io, handle.grant))
    assert not io.steps


def test_who_asks_for_the_end_of_a_leadership_whose_lease_is_over_is_called_at_once() -> None:
    """Perhaps nobody has looked at it since."""
    io, told = FakeIO(), list[LossReason]()
    core, handle = leading(io)

    class View(LeadershipView):
        _core, _hold = core, handle.grant

        def _check_callbacks(self, **_: object) -> None:
            """Take any."""

    io.time = handle.grant.valid_until + 1.0
    View().on_lost(told.append)
    assert told == [LossReason.EXPIRED]
