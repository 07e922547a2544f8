"""Each rule of the semaphore has a test that fails when the rule is broken: none passes for nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from consul_coord.errors import ConsulCoordError
from consul_coord.recipes.contend.pooled import PooledAttempt
from consul_coord.recipes.semaphore import slots
from consul_coord.recipes.semaphore.attempt import PermitAttempt
from consul_coord.recipes.semaphore.kind import Memory, PermitKind
from consul_coord.recipes.semaphore.slots import Listing
from consul_coord.recipes.session.pool import SessionPool
from tests.simulation.mutations import Mutation
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
LEAVING, AGAIN, AT_ONCE = program.TestLeaving(), program.TestUsingSessionsAgain(), program.TestTakingAtOnce()


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
            "judge",
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
            "_take",
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
            "_take_ops",
            "record.index, flags",
            "0, flags",
        ),
        on_a_bench(TAKING.test_it_names_both_indexes_and_changes_the_contender),
    ),
    Broken(
        "S5",
        Mutation("foreign contenders have ranks", Listing, "waiters", " and is_waiting(pair)", ""),
        lambda: pure.TestListing().test_foreign_contenders_hold_but_never_wait(),
    ),
    Broken(
        "S6",
        Mutation(
            "the record is not watched",
            PermitKind,
            "watches",
            "return watch_of(hold), KeyWatch(key, self._record.index, self._record_loss, seldom=True)",
            "return (watch_of(hold),)",
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
            "self.pooled.settled = False",
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
            "self._limit_seen is None and record.limit != limit",
            "record.limit != limit",
        ),
        on_a_bench(WAITING.test_a_limit_that_changes_meanwhile_is_adopted),
    ),
    Broken(
        "S9",
        Mutation(
            "holders above a shrunken limit do not count",
            slots,
            "judge",
            "listing.record.limit - len(held)",
            "max(1, listing.record.limit - len(held))",
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
        Mutation("who waits is passed", Memory, "left", "if free and not listing.wanted()", "if free"),
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
)


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: f"{broken.rule}: {broken.mutation.name}")
def test_a_broken_rule_is_seen(broken: Broken) -> None:
    broken.test()
    with broken.mutation.planted(), pytest.raises((AssertionError, ConsulCoordError, pytest.fail.Exception)):
        broken.test()


def test_every_rule_is_broken() -> None:
    assert {broken.rule for broken in BROKEN} == {f"S{number}" for number in range(1, 12)}
