"""A semaphore's record and queue, as values: format, order, and what one reading of them means."""

from __future__ import annotations

import json
from bisect import bisect_left
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consul_coord.errors import DecodeError, InvalidArgument, ValueTooLarge
from consul_coord.http.endpoints import kv
from consul_coord.http.endpoints._call import BODY_LIMIT
from consul_coord.models import SEMAPHORE_FLAGS, KVPair, TxnOp
from consul_coord.recipes.contend.queue import session_of
from consul_coord.recipes.semaphore import slots
from consul_coord.recipes.semaphore.slots import (
    Follow,
    Front,
    Gone,
    Held,
    Listing,
    Prune,
    Record,
    Take,
    TooSmall,
)

P = "api/slots"
A, B, C, D = (f"{digit * 8}-{digit * 4}-{digit * 4}-{digit * 4}-{digit * 12}" for digit in "abcd")


def record(
    holders: object = None, *, limit: object = 2, index: int = 50, flags: int = SEMAPHORE_FLAGS
) -> KVPair:
    value = json.dumps({"Limit": limit, "Holders": holders or {}}).encode()
    return KVPair(f"{P}/.lock", value=value, flags=flags, modify_index=index)


def contender(session: str, *, at: int, value: bytes | None = None, held_by: str | None = "") -> KVPair:
    return KVPair(
        f"{P}/{session}",
        value=slots.waiting(b"") if value is None else value,
        session=session if held_by == "" else held_by,
        create_index=at,
        modify_index=at,
    )


def holder(session: str, *, at: int) -> KVPair:
    return contender(session, at=at, value=slots.holding(b""))


def wants(session: str, permits: int, *, at: int) -> KVPair:
    return contender(session, at=at, value=slots.waiting(b"", permits=permits))


def go_client(session: str, *, at: int) -> KVPair:
    return contender(session, at=at, value=b"")


def listing(*pairs: KVPair, limit: int = 2, index: int = 99) -> Listing:
    return slots.read(P, pairs, limit=limit, flags=SEMAPHORE_FLAGS, index=index)


class TestRecord:
    def read(self, value: bytes) -> Record:
        pair = KVPair(f"{P}/.lock", value=value, flags=7, modify_index=50)
        return slots.read_record(pair, limit=3, flags=SEMAPHORE_FLAGS)

    def test_it_is_written_as_the_go_client_writes_it(self) -> None:
        assert Record(2, (A, B)).encode() == f'{{"Limit":2,"Holders":{{"{A}":true,"{B}":true}}}}'.encode()
        assert Record(2).encode() == b'{"Limit":2,"Holders":{}}'

    def test_an_absent_one_is_that_of_an_unused_semaphore(self) -> None:
        assert slots.read_record(None, limit=3, flags=9) == Record(3, index=0, flags=9)

    def test_an_empty_one_counts_as_absent_but_is_written_at_its_index(self) -> None:
        assert self.read(b"") == Record(3, index=50, flags=7)

    @pytest.mark.parametrize(
        ("value", "limit", "holders"),
        [
            (b'{"Limit":2,"Holders":{"a":true,"b":true}}', 2, ("a", "b")),
            (b'{"limit":2,"HOLDERS":{"a":true}}', 2, ("a",)),
            (b'{"Limit":2,"Holders":{"a":false,"b":null}}', 2, ("a", "b")),
            (b'{"Limit":2,"Holders":["a","b","a"]}', 2, ("a", "b")),
            (b'{"Limit":2,"Holders":[]}', 2, ()),
            (b'{"Limit":2,"Holders":null}', 2, ()),
            (b'{"Limit":2}', 2, ()),
            (b'{"Holders":{"a":true}}', 0, ("a",)),
            (b'{"Limit":null}', 0, ()),
            (b'{"Limit":-1}', -1, ()),
            (b" { }\n", 0, ()),
        ],
    )
    def test_what_others_write_is_read(self, value: bytes, limit: int, holders: tuple[str, ...]) -> None:
        found = self.read(value)
        assert (found.limit, found.holders, found.index) == (limit, holders, 50)

    @pytest.mark.parametrize(
        "value",
        [
            b"{",
            b"null",
            b"[]",
            b"3",
            b'"text"',
            b"\xff\xfe",
            b'{"Limit":"2"}',
            b'{"Limit":2.5}',
            b'{"Limit":true}',
            b'{"Limit":NaN}',
            b'{"Limit":99999999999999999999}',
            b'{"Limit":2,"Holders":"a"}',
            b'{"Limit":2,"Holders":3}',
            b'{"Limit":2,"Holders":[1]}',
            b'{"Limit":2,"Holders":[{"ID":"a"}]}',
            b"[" * 100_000,
        ],
    )
    def test_what_is_no_record_is_a_typed_error(self, value: bytes) -> None:
        with pytest.raises(DecodeError, match=r"api/slots/\.lock"):
            self.read(value)

    @given(st.binary(max_size=200))
    def test_nothing_crashes_it(self, value: bytes) -> None:
        try:
            found = self.read(value)
        except DecodeError:
            return
        assert isinstance(found.limit, int)

    @given(st.dictionaries(st.text(), st.integers() | st.text() | st.none()))
    def test_an_object_is_written_back_with_all_it_had(self, members: dict[str, object]) -> None:
        known = {name: value for name, value in members.items() if name.lower() not in {"limit", "holders"}}
        found = self.read(json.dumps({**known, "Limit": 2, "Holders": {"a": True}}).encode())
        assert json.loads(found.encode()) == {**known, "Limit": 2, "Holders": {"a": True}}

    def test_a_list_stays_a_list_and_flags_stay(self) -> None:
        found = self.read(b'{"Limit":2,"Holders":["a"],"Owner":"ops"}')
        changed = found.with_holders((*found.holders, "b"))
        assert json.loads(changed.encode()) == {"Limit": 2, "Holders": ["a", "b"], "Owner": "ops"}
        assert changed.flags == 7

    def test_leaving_it_takes_one_holder_out(self) -> None:
        assert Record(2, (A, B), index=5).without({A}) == Record(2, (B,), index=5)


class TestLimit:
    @pytest.mark.parametrize("limit", [0, -1, True, 2.0, "2", None])
    def test_what_is_no_limit_is_refused(self, limit: object) -> None:
        with pytest.raises(InvalidArgument):
            slots.check_limit(P, limit)

    def test_a_record_that_could_not_be_written_is_refused_before(self) -> None:
        with pytest.raises(ValueTooLarge, match="9000 holders") as caught:
            slots.check_limit(P, 9_000)
        assert caught.value.size > caught.value.limit == 512 * 1024
        with pytest.raises(ValueTooLarge):
            slots.check_limit(P, 5_000, value=bytes(300_000))

    @pytest.mark.parametrize(("prefix", "length"), [(P, 10), (P, 11), (P, 200_000), ("p" * 300, 12)])
    def test_the_largest_limit_allowed_can_be_written_and_hardly_more(self, prefix: str, length: int) -> None:
        value = b"v" * length

        def is_refused(limit: int) -> bool:
            try:
                return slots.check_limit(prefix, limit, value=value) != limit
            except ValueTooLarge:
                return True

        largest = bisect_left(range(20_000), True, lo=1, key=is_refused) - 1
        assert largest > 1_000
        full = Record(largest, tuple(f"{number:036}" for number in range(largest)))
        dead = (f"{number:08x}-0000-4000-8000-000000000000" for number in range(slots.most_removed()))
        body = kv.txn(
            *slots.removal(prefix, dead, by=A),
            TxnOp.check_index(f"{prefix}/{A}", 2**63),
            TxnOp.cas(f"{prefix}/.lock", full.encode(), 2**63, flags=SEMAPHORE_FLAGS),
            TxnOp.lock(f"{prefix}/{A}", A, value=slots.holding(value), flags=SEMAPHORE_FLAGS),
        ).request.body
        assert body is not None
        assert BODY_LIMIT - 8_000 < len(body) <= BODY_LIMIT


class TestContender:
    @pytest.mark.parametrize("value", [b"", b"v", b"two\nlines", b"\x00\xff"])
    def test_the_users_value_travels_beside_the_mark(self, value: bytes) -> None:
        for marked in (slots.waiting(value), slots.holding(value)):
            assert slots.value_of(contender(A, at=1, value=marked)) == value

    def test_a_foreign_value_is_shown_as_it_is(self) -> None:
        assert slots.value_of(go_client(A, at=1)) == b""
        assert slots.value_of(contender(A, at=1, value=b"two\nlines")) == b"two\nlines"

    @pytest.mark.parametrize("permits", [1, 2, 31])
    def test_the_mark_of_a_waiter_says_how_many_it_wants(self, permits: int) -> None:
        pair = contender(A, at=1, value=slots.waiting(b"two\nlines", permits=permits))
        assert slots.wanted_by(pair) == permits
        assert slots.value_of(pair) == b"two\nlines"

    @pytest.mark.parametrize(
        "mark", [b" 0", b" 01", b" -1", b" 2 ", b"  2", b" x", b"2", b" 99999", b" \xb2"]
    )
    def test_any_other_mark_makes_no_waiter(self, mark: bytes) -> None:
        pair = contender(A, at=1, value=b"consul-coord:wait" + mark + b"\nv")
        assert slots.wanted_by(pair) == 0
        assert slots.value_of(pair) == pair.value

    def test_only_a_waiters_mark_makes_a_waiter(self) -> None:
        values = [b"", b"consul-coord:waiting", slots.holding(b"consul-coord:wait"), slots.waiting(b"v")]
        assert [slots.wanted_by(contender(A, at=1, value=value)) for value in values] == [0, 0, 0, 1]


class TestListing:
    def test_a_contender_is_live_while_its_own_session_holds_it(self) -> None:
        found = listing(
            contender(A, at=1),
            contender(B, at=2, held_by=None),
            contender(C, at=3, held_by=A),
            KVPair(f"{P}/{D}/deeper", session=D),
            KVPair(f"{P}2/{D}", session=D),
        )
        assert set(found.live) == {A}

    def test_what_nobody_holds_and_looks_like_a_contender_is_a_leftover(self) -> None:
        unlocked = replace(contender(A, at=1, held_by=None), flags=SEMAPHORE_FLAGS)
        found = listing(
            unlocked,
            contender(B, at=2, held_by=None),
            replace(contender(C, at=3), flags=SEMAPHORE_FLAGS),
            KVPair(f"{P}/notes", flags=SEMAPHORE_FLAGS),
            record({}),
        )
        assert found.leftovers == (unlocked,)

    def test_dead_holders_do_not_count(self) -> None:
        found = listing(record({A: True, B: True}), holder(A, at=1))
        assert found.held == (A,)
        assert found.dead == (B,)

    def test_waiters_queue_by_creation_and_holders_do_not_wait(self) -> None:
        found = listing(record({B: True}), contender(A, at=9), contender(B, at=1), contender(C, at=3))
        assert [session_of(pair) for pair in found.waiters] == [C, A]

    def test_a_waiter_whose_contender_is_written_again_keeps_its_place(self) -> None:
        """As by a join that was repeated, and applied twice."""
        first = replace(contender(A, at=3), modify_index=9)
        found = listing(record(), contender(B, at=5), first)
        assert [session_of(pair) for pair in found.waiters] == [A, B]
        assert isinstance(slots.judge(found, B, born=5), Take), "both slots are free"
        full = listing(
            record({C: True, D: True}), holder(C, at=1), holder(D, at=2), contender(B, at=5), first
        )
        assert slots.judge(full, A, born=3) == Front(first)

    def test_foreign_contenders_hold_but_never_wait(self) -> None:
        found = listing(record({A: True}), go_client(A, at=1), go_client(B, at=2), contender(C, at=3))
        assert found.held == (A,)
        assert [session_of(pair) for pair in found.waiters] == [C]

    def test_whoever_is_there_without_a_slot_wants_one(self) -> None:
        found = listing(record({A: True}), holder(A, at=1), go_client(B, at=2))
        assert found.wanted()
        assert not found.wanted(but_by=B)
        assert not listing(record({A: True}), holder(A, at=1)).wanted()


class TestJudge:
    def test_a_free_slot_is_taken_at_the_index_of_the_record(self) -> None:
        verdict = slots.judge(listing(record({B: True}), holder(B, at=1), contender(A, at=2)), A, born=2)
        assert isinstance(verdict, Take)
        assert (verdict.record.holders, verdict.record.index, verdict.own.modify_index) == ((B, A), 50, 2)

    def test_a_semaphore_without_a_record_is_begun_at_index_0(self) -> None:
        verdict = slots.judge(listing(contender(A, at=2), limit=4), A, born=2)
        assert isinstance(verdict, Take)
        assert (verdict.record.index, verdict.record.limit, verdict.record.holders) == (0, 4, (A,))

    def test_a_take_removes_dead_holders_but_not_the_refused(self) -> None:
        found = listing(record({B: True, C: True, D: True}, limit=3), contender(A, at=2), holder(B, at=1))
        verdict = slots.judge(found, A, born=2, refused={D})
        assert isinstance(verdict, Take)
        assert verdict.record.holders == (B, D, A)
        assert verdict.removed == (C,)

    def test_a_refused_slot_is_not_free(self) -> None:
        found = listing(record({B: True}, limit=1), contender(A, at=2))
        assert isinstance(slots.judge(found, A, born=2), Take)
        assert isinstance(slots.judge(found, A, born=2, refused={B}), Front)

    def test_refused_slots_count_in_ranks(self) -> None:
        # Or the second of the queue passes the first, which has just been refused.
        found = listing(record({B: True}, limit=2), contender(C, at=2), contender(A, at=3))
        assert isinstance(slots.judge(found, A, born=3), Take)
        assert isinstance(slots.judge(found, A, born=3, refused={B}), Follow)

    def test_one_take_removes_no_more_than_a_transaction_holds(self) -> None:
        dead = [f"{number:08x}-0000-4000-8000-000000000000" for number in range(40)]
        named = dict.fromkeys(dead, True)
        verdict = slots.judge(listing(record(named, limit=40), contender(A, at=2)), A, born=2)
        assert isinstance(verdict, Take)
        assert verdict.removed == tuple(dead[: slots.most_removed()])
        operations = len(slots.removal(P, verdict.removed, by=A)) + 3
        assert operations <= kv.OPS_LIMIT < operations + 2

    def test_where_that_frees_no_slot_the_front_removes_them_first(self) -> None:
        dead = [f"{number:08x}-0000-4000-8000-000000000000" for number in range(40)]
        found = listing(record(dict.fromkeys(dead, True), limit=5), contender(A, at=2), contender(B, at=3))
        verdict = slots.judge(found, A, born=2)
        assert isinstance(verdict, Prune)
        assert verdict.record.holders == tuple(dead[slots.most_removed() :])
        assert isinstance(slots.judge(found, B, born=3), Follow)

    def test_what_is_no_sessions_id_is_removed_without_asking(self) -> None:
        removal = slots.removal(P, ("", "a/b", B), by=A)
        assert [(op.verb, op.key, op.session) for op in removal] == [
            ("lock", f"{P}/{B}", A),
            ("delete", f"{P}/{B}", None),
        ]

    def test_the_first_as_many_as_slots_are_free_may_take(self) -> None:
        found = listing(
            record({}), contender(A, at=1), contender(B, at=2), contender(C, at=3), contender(D, at=4)
        )
        kinds = [type(slots.judge(found, one, born=at)) for at, one in enumerate((A, B, C, D), 1)]
        assert kinds == [Take, Take, Follow, Follow]

    def test_without_a_free_slot_the_first_watches_all_and_the_others_the_one_before(self) -> None:
        found = listing(
            record({D: True}, limit=1),
            holder(D, at=9),
            contender(A, at=1),
            contender(B, at=2),
            contender(C, at=3),
        )
        assert slots.judge(found, A, born=1) == Front(contender(A, at=1))
        assert slots.judge(found, B, born=2) == Follow(contender(B, at=2), contender(A, at=1), 1)
        assert slots.judge(found, C, born=3) == Follow(contender(C, at=3), contender(B, at=2), 2)

    def test_a_foreign_contender_is_never_watched_nor_waited_for(self) -> None:
        # It takes by the record alone, and leaves its contender as it is: who watched that would sleep.
        full = listing(record({D: True}, limit=1), holder(D, at=9), go_client(B, at=1), contender(A, at=2))
        assert isinstance(slots.judge(full, A, born=2), Front)
        free = listing(record({}, limit=1), go_client(B, at=1), contender(A, at=2))
        assert isinstance(slots.judge(free, A, born=2), Take)

    def test_a_shrunken_limit_expels_nobody_and_admits_nobody(self) -> None:
        found = listing(
            record({B: True, C: True, D: True}, limit=1),
            *(holder(one, at=5) for one in (B, C, D)),
            contender(A, at=9),
        )
        assert isinstance(slots.judge(found, A, born=9), Front)
        assert slots.judge(found, B, born=5) == Held(holder(B, at=5))

    def test_whom_the_record_names_holds(self) -> None:
        found = listing(record({A: True}), contender(A, at=2))
        assert slots.judge(found, A, born=2) == Held(contender(A, at=2))

    @pytest.mark.parametrize(
        "pairs",
        [
            (),
            (record({A: True}),),
            (contender(A, at=2, held_by=None),),
            (contender(A, at=3),),
            (record({A: True}), contender(A, at=3)),
            (contender(A, at=2, value=b"overwritten"),),
        ],
        ids=["absent", "absent but named", "unlocked", "of another join", "an earlier hold", "mark lost"],
    )
    def test_a_contender_that_is_not_the_one_we_made_means_to_start_over(
        self, pairs: tuple[KVPair, ...]
    ) -> None:
        assert slots.judge(listing(*pairs), A, born=2) == Gone()

    def test_several_are_taken_when_all_are_free(self) -> None:
        found = listing(record({D: True}, limit=3), holder(D, at=1), wants(A, 2, at=2))
        verdict = slots.judge(found, A, born=2, others=[B])
        assert isinstance(verdict, Take)
        assert verdict.record.holders == (D, A, B)
        assert isinstance(slots.judge(found, A, born=2, others=[B, C]), Front)

    def test_nobody_passes_who_wants_more_than_is_free(self) -> None:
        large = wants(A, 3, at=2)
        found = listing(record({D: True}, limit=3), holder(D, at=1), large, contender(C, at=3))
        others = [f"{number:08x}-2222-4000-8000-000000000000" for number in (1, 2)]
        assert slots.judge(found, A, born=2, others=others) == Front(large)
        assert slots.judge(found, C, born=3) == Follow(contender(C, at=3), large, 1)

    def test_who_fits_besides_those_before_takes_with_them(self) -> None:
        found = listing(record({}, limit=3), wants(A, 2, at=2), contender(C, at=3), contender(D, at=4))
        kinds = [
            type(slots.judge(found, A, born=2, others=[B])),
            *(type(slots.judge(found, one, born=at)) for one, at in ((C, 3), (D, 4))),
        ]
        assert kinds == [Take, Take, Follow]

    def test_a_part_of_what_was_wanted_is_not_held(self) -> None:
        whole = listing(record({A: True, B: True}), contender(A, at=2), holder(B, at=5))
        assert slots.judge(whole, A, born=2, others=[B]) == Held(contender(A, at=2))
        for part in (
            listing(record({A: True}), contender(A, at=2), holder(B, at=5)),
            listing(record({A: True, B: True}), contender(A, at=2)),
        ):
            assert slots.judge(part, A, born=2, others=[B]) == Gone()

    def test_more_than_the_limit_is_not_waited_for(self) -> None:
        found = listing(record({}, limit=1), wants(A, 2, at=2))
        assert slots.judge(found, A, born=2, others=[B]) == TooSmall(1)
        nobody = listing(record({}, limit=0), contender(A, at=2))
        assert slots.judge(nobody, A, born=2) == TooSmall(0)

    @pytest.mark.parametrize("permits", [1, 2, 7, 16, 30, slots.MOST_PERMITS])
    def test_a_take_of_several_removes_as_many_dead_as_fit_beside_it(self, permits: int) -> None:
        dead = [f"{number:08x}-0000-4000-8000-000000000000" for number in range(40)]
        others = [f"{number:08x}-1111-4000-8000-000000000000" for number in range(1, permits)]
        found = listing(record(dict.fromkeys(dead, True), limit=80), wants(A, permits, at=2))
        verdict = slots.judge(found, A, born=2, others=others)
        assert isinstance(verdict, Take)
        operations = len(slots.removal(P, verdict.removed, by=A)) + 2 + permits
        assert operations <= kv.OPS_LIMIT < operations + 2
        assert 2 * permits + 2 <= kv.OPS_LIMIT, "a leave fits, too"

    @given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.integers(4, 8), st.integers(0, 8))
    def test_the_first_that_fit_take_and_all_others_have_somebody_to_wake_them(
        self, wanted: list[int], limit: int, held: int
    ) -> None:
        ids = [f"{number:08x}-0000-4000-8000-000000000000" for number in range(40)]
        holders, waiting = ids[30 : 30 + held], ids[: len(wanted)]
        found = listing(
            record(dict.fromkeys(holders, True), limit=limit),
            *(holder(one, at=1) for one in holders),
            *(wants(one, n, at=10 + at) for at, (one, n) in enumerate(zip(waiting, wanted, strict=True))),
        )
        free, took = limit - held, True
        for at, (one, n) in enumerate(zip(waiting, wanted, strict=True)):
            others = [f"{number:08x}-2222-4000-8000-000000000000" for number in range(1, n)]
            verdict = slots.judge(found, one, born=10 + at, others=others)
            took = took and n <= free
            free -= n
            assert isinstance(verdict, Take if took else Front if at == 0 else Follow)

    @given(st.permutations([A, B, C, D]), st.integers(0, 4), st.integers(1, 4))
    def test_takes_fill_the_free_slots_and_everybody_else_has_somebody_to_wake_him(
        self, order: list[str], held: int, limit: int
    ) -> None:
        pairs = [(holder if at < held else contender)(one, at=at + 1) for at, one in enumerate(order)]
        found = listing(record(dict.fromkeys(order[:held], True), limit=limit), *pairs)
        waiting = order[held:]
        verdicts = [slots.judge(found, one, born=at) for at, one in enumerate(waiting, held + 1)]
        free = max(0, limit - held)
        assert [type(one) for one in verdicts[:free]] == [Take] * len(waiting[:free])
        for place, verdict in enumerate(verdicts[free:], free):
            if place == 0:
                assert isinstance(verdict, Front)
            else:
                assert isinstance(verdict, Follow)
                assert verdict.predecessor.key == f"{P}/{waiting[place - 1]}"
