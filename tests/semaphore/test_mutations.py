"""Each rule of the semaphore has a test that fails when the rule is broken: none passes for nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from consul_coord.errors import ConsulCoordError
from consul_coord.recipes.contend.pooled import PooledAttempt
from consul_coord.recipes.hold.grant import Grant
from consul_coord.recipes.semaphore import semaphore, slots
from consul_coord.recipes.semaphore.attempt import PermitAttempt
from consul_coord.recipes.semaphore.kind import Memory, PermitKind
from consul_coord.recipes.semaphore.slots import Listing
from consul_coord.recipes.session.pool import SessionPool
from tests.simulation.mutations import Mutation
from tests.support.fake_io import Unexpected
from tests.unit.recipes import test_slots as pure
from tests.unit.recipes import test_slots_program as program

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Broken:
    """A rule, what somebody might have written instead, and the test that sees it."""

    rule: str
    mutation: Mutation
    test: Callable[[], None]


def on_a_bench(test: Callable[[program.Bench], None]) -> Callable[[], None]:
    return lambda: test(program.Bench())


JOINING, TAKING, WAITING = program.TestJoining(), program.TestTaking(), program.TestWaiting()
DELAYED = program.TestLockDelay()
SEVERAL = program.TestTakingSeveral()
LEAVING, AGAIN, AT_ONCE = program.TestLeaving(), program.TestUsingSessionsAgain(), program.TestTakingAtOnce()

SEEN = (AssertionError, Unexpected, ConsulCoordError, pytest.fail.Exception)
"""How a test fails that sees a broken rule."""

BROKEN = (
    Broken(
        "S1",
        Mutation(
            "a session is used again after its contender vanished",
            PermitAttempt,
            "_follow_up",
            "self._drop_session()",
            "self.own = None",
        ),
        on_a_bench(WAITING.test_a_contender_that_vanished_is_looked_for_once_more_then_replaced),
    ),
    Broken(
        "S2",
        Mutation(
            "a list that can't be read is an empty one",
            PermitAttempt,
            "_join",
            "if self.session not in listing.live:",
            "if False:",
        ),
        on_a_bench(JOINING.test_a_contender_that_can_not_be_read_means_no_permission),
    ),
    Broken(
        "S3",
        Mutation(
            "a lost reply is not found out",
            slots,
            "judge",
            "if session in listing.record.holders:",
            "if False:",
        ),
        on_a_bench(TAKING.test_an_unanswered_one_is_followed_by_a_list_which_may_show_it_done),
    ),
    Broken(
        "S3",
        Mutation(
            "everybody is at the front",
            slots,
            "_judge_place",
            "Front(own) if rank == 0 else Follow(own, waiters[rank - 1], rank)",
            "Front(own)",
        ),
        on_a_bench(WAITING.test_the_others_watch_who_waits_before_them_from_the_index_of_the_list),
    ),
    Broken(
        "S3",
        Mutation(
            "the front watches from the beginning",
            PermitAttempt,
            "_wait_at_the_front",
            "listing.index,",
            "1,",
        ),
        on_a_bench(WAITING.test_the_front_watches_the_prefix_from_its_own_index_then_from_the_lists),
    ),
    Broken(
        "S4",
        Mutation(
            "a take does not name the contender",
            PermitAttempt,
            "_write",
            "TxnOp.check_index(own.key, own.modify_index)",
            "TxnOp.get(own.key)",
        ),
        on_a_bench(TAKING.test_it_names_both_indexes_and_changes_the_contender),
    ),
    Broken(
        "S4",
        Mutation(
            "a take leaves the contender as it was",
            PermitAttempt,
            "_take_ops",
            "slots.holding(self.value)",
            "slots.waiting(self.value)",
        ),
        on_a_bench(TAKING.test_it_names_both_indexes_and_changes_the_contender),
    ),
    Broken(
        "S4",
        Mutation(
            "a take does not name the record's index",
            PermitAttempt,
            "_write_record",
            "record.index, flags",
            "0, flags",
        ),
        on_a_bench(TAKING.test_it_names_both_indexes_and_changes_the_contender),
    ),
    Broken(
        "S5",
        Mutation("foreign contenders have ranks", Listing, "waiters", " and wanted_by(pair)", ""),
        lambda: pure.TestListing().test_foreign_contenders_hold_but_never_wait(),
    ),
    Broken(
        "S6",
        Mutation(
            "the record is not watched",
            PermitKind,
            "watches",
            "return own, record, *map",
            "return own, *map",
        ),
        on_a_bench(program.TestHolding().test_the_contender_and_the_record_are_watched_from_the_take_on),
    ),
    Broken(
        "S7",
        Mutation(
            "the record is fought over",
            PermitKind,
            "_leave",
            "self._alone and self._memory.tidy_leave",
            "self._memory.tidy_leave",
        ),
        on_a_bench(LEAVING.test_with_others_there_the_contender_alone_is_deleted),
    ),
    Broken(
        "S8",
        Mutation(
            "an unanswered request is forgotten",
            PooledAttempt,
            "_unanswered",
            "pooled.settled = False",
            "pass",
        ),
        on_a_bench(program.TestGivingUp().test_after_any_unanswered_request_the_session_is_destroyed),
    ),
    Broken(
        "S9",
        Mutation(
            "a limit that changes meanwhile is a conflict",
            PermitAttempt,
            "_read",
            "self._limit_seen is None and record.limit not in {limit, coming}",
            "record.limit not in {limit, coming}",
        ),
        on_a_bench(WAITING.test_a_limit_that_changes_meanwhile_is_adopted),
    ),
    Broken(
        "S9",
        Mutation(
            "holders above a shrunken limit do not count",
            slots,
            "_judge_place",
            "record.limit - len(kept)",
            "max(1, record.limit - len(kept))",
        ),
        lambda: pure.TestJudge().test_a_shrunken_limit_expels_nobody_and_admits_nobody(),
    ),
    Broken(
        "S10",
        Mutation("an older record counts", SessionPool, "saw", "index > session.taken_at and ", ""),
        on_a_bench(AGAIN.test_an_older_record_without_it_says_nothing),
    ),
    Broken(
        "S10",
        Mutation("any contender of ours counts", slots, "judge", " or own.create_index != born", ""),
        on_a_bench(WAITING.test_a_list_with_another_contender_of_ours_is_an_old_leaders),
    ),
    Broken(
        "S10",
        Mutation(
            "a session with an unanswered request is used again",
            SessionPool,
            "put_back",
            "not session.settled or ",
            "",
        ),
        on_a_bench(AGAIN.test_a_permit_that_wrote_its_value_ends_with_its_session),
    ),
    Broken(
        "S11",
        Mutation("who waits is passed", Memory, "left", "[] if listing.wanted() else ", ""),
        on_a_bench(AT_ONCE.test_whoever_is_there_is_let_go_first),
    ),
    Broken(
        "S11",
        Mutation(
            "a remembered record is tried again and again",
            Memory,
            "recall",
            "left, self._left = self._left, []",
            "left = self._left",
        ),
        on_a_bench(AT_ONCE.test_what_was_left_is_recalled_once),
    ),
    Broken(
        "S11",
        Mutation(
            "after no answer the session goes on",
            PermitAttempt,
            "_take_at_once",
            "except BaseException:\n        self._drop_session()",
            "except BaseException:\n        pass",
        ),
        on_a_bench(AT_ONCE.test_without_an_answer_the_session_is_never_used_again),
    ),
    Broken(
        "S12",
        Mutation(
            "a dead holder's slot is taken without asking for its lock-delay",
            slots,
            "removal",
            "(TxnOp.lock(key, by), TxnOp.delete(key))",
            "(TxnOp.delete(key),)",
        ),
        on_a_bench(TAKING.test_a_dead_holder_is_removed_together_with_its_key),
    ),
    Broken(
        "S12",
        Mutation(
            "the refused do not count in ranks",
            slots,
            "_judge_place",
            "<= record.limit - len(kept):",
            "<= record.limit - len(listing.held):",
        ),
        lambda: pure.TestJudge().test_refused_slots_count_in_ranks(),
    ),
    Broken(
        "S12",
        Mutation(
            "no timer ends the front's watch",
            PermitAttempt,
            "_wait_at_the_front",
            "min(self._watch_until, self._pause_over) if self.refused else self._watch_until",
            "self._watch_until",
        ),
        on_a_bench(DELAYED.test_a_refused_holder_counts_and_is_tried_again_after_a_pause),
    ),
    Broken(
        "S12",
        Mutation(
            "the refused front sleeps",
            PermitAttempt,
            "_wait_at_the_front",
            "await self._before_a_watch()",
            "await self._before_a_watch()\n    if self.refused:\n        await self.io.sleep(0.05)\n"
            "        return",
        ),
        DELAYED.test_a_slot_that_gets_free_in_the_pause_is_taken_without_the_refused,
    ),
    Broken(
        "S12",
        Mutation(
            "a delay of the own session's is taken for another's",
            PermitAttempt,
            "_refused",
            "failure.op_index < removing and failure.op",
            "failure.op",
        ),
        on_a_bench(DELAYED.test_a_delay_on_the_own_contender_means_that_the_own_session_has_ended),
    ),
    Broken(
        "S12",
        Mutation(
            "one take removes all the dead",
            slots,
            "_judge_place",
            "dead[: most_removed(len(ours))]",
            "dead",
        ),
        lambda: pure.TestJudge().test_one_take_removes_no_more_than_a_transaction_holds(),
    ),
    Broken(
        "S12",
        Mutation(
            "so many are dead that nobody can take",
            slots,
            "_judge_place",
            "if rank == 0 and len(dead) > len(removed):",
            "if False:",
        ),
        lambda: pure.TestJudge().test_where_that_frees_no_slot_the_front_removes_them_first(),
    ),
    Broken(
        "S7",
        Mutation(
            "a leave removes the dead",
            PermitKind,
            "_leave_tidily",
            "self._record.without(self._ids)",
            "self._record.with_holders(())",
        ),
        LEAVING.test_the_dead_stay_in_the_record,
    ),
    Broken(
        "S7",
        Mutation(
            "a session is destroyed with its contender",
            PermitKind,
            "_destroy",
            "await delete_once(io, hold.key, *(pair.key for pair in self._further), deadline=deadline)",
            "pass",
        ),
        on_a_bench(LEAVING.test_without_an_answer_the_session_is_destroyed_until_that_is_answered),
    ),
    Broken(
        "S8",
        Mutation(
            "giving up closes the slot",
            PooledAttempt,
            "_claim",
            "pooled.contender = self.contender_of(pooled.id)",
            "pass",
        ),
        on_a_bench(program.TestGivingUp().test_the_contender_is_deleted_before_its_session_and_after_it),
    ),
    Broken(
        "S9",
        Mutation(
            "a resize removes the dead",
            semaphore,
            "resize",
            "replace(record, limit=limit)",
            "replace(record, limit=limit, holders=())",
        ),
        on_a_bench(program.TestResizing().test_the_dead_stay_in_the_record),
    ),
    Broken(
        "S11",
        Mutation(
            "dead holders do not count when a slot is taken at once",
            Memory,
            "left",
            "[listing.record]",
            "[listing.record.with_holders(listing.held)]",
        ),
        AT_ONCE.test_the_dead_keep_their_slots,
    ),
    Broken(
        "S13",
        Mutation("smaller ones pass", slots, "_judge_place", "sum(map(wanted_by, waiters[:rank]))", "rank"),
        lambda: pure.TestJudge().test_nobody_passes_who_wants_more_than_is_free(),
    ),
    Broken(
        "S13",
        Mutation("one free slot is enough", slots, "_judge_place", "+ len(ours) <=", "+ 1 <="),
        lambda: pure.TestJudge().test_several_are_taken_when_all_are_free(),
    ),
    Broken(
        "S13",
        Mutation(
            "a part is adopted",
            slots,
            "judge",
            "if listing.live.keys() >= set(ours) <= set(listing.record.holders) else Gone()",
            "",
        ),
        lambda: pure.TestJudge().test_a_part_of_what_was_wanted_is_not_held(),
    ),
    Broken(
        "S13",
        Mutation(
            "who wants too much waits",
            slots,
            "judge",
            "len(ours) > listing.record.limit",
            "False",
        ),
        lambda: pure.TestJudge().test_more_than_the_limit_is_not_waited_for(),
    ),
    Broken(
        "S13",
        Mutation(
            "a take locks the first alone", PermitAttempt, "_take_ops", "in self.mine", "in self.mine[:1]"
        ),
        SEVERAL.test_one_transaction_takes_all,
    ),
    Broken(
        "S13",
        Mutation(
            "the lease is that of the first session",
            Grant,
            "__init__",
            "AllOf(each.lease for each in self.all_kept) if others else kept.lease",
            "kept.lease",
        ),
        lambda: SEVERAL.test_it_is_valid_for_as_long_as_the_first_to_expire(1),
    ),
    Broken(
        "S13",
        Mutation("a loss leaves the others", PermitKind, "lost", "self.abandon(hold)", "pass"),
        lambda: SEVERAL.test_the_end_of_any_session_ends_it_and_the_others(0, program.NEXT),
    ),
    Broken(
        "S13",
        Mutation(
            "a release gives one back after the other",
            PermitKind,
            "_leave_tidily",
            "*self._further_deletes,",
            "",
        ),
        SEVERAL.test_one_transaction_gives_all_back,
    ),
    Broken(
        "S13",
        Mutation(
            "the first session is taken for the one that has ended",
            PooledAttempt,
            "_blocked",
            "if pooled.id in unknown",
            "if False",
        ),
        SEVERAL.test_a_session_that_is_unknown_at_the_take_is_found_and_all_are_replaced,
    ),
)


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: f"{broken.rule}: {broken.mutation.name}")
@pytest.mark.usefixtures("more_than_asked")
def test_a_broken_rule_is_seen(broken: Broken) -> None:
    broken.test()
    with broken.mutation.planted(), pytest.raises(SEEN):
        broken.test()


def test_every_rule_is_broken() -> None:
    assert {broken.rule for broken in BROKEN} == {f"S{number}" for number in range(1, 14)}
