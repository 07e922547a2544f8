"""Each rule's test fails when the rule is broken: so none of them passes for nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.queue import mutations, test_rules

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.queue.mutations import Mutate
    from tests.queue.stage import Stage

BROKEN: Final[tuple[tuple[Callable[[Stage], None], Mutate], ...]] = (
    (test_rules.test_l01_a_late_barge_does_not_get_past_the_queue, mutations.barge_without_a_check),
    (test_rules.test_l01_a_newcomer_takes_a_free_key_past_the_queue, mutations.never_barge),
    (test_rules.test_l02_a_join_that_is_repeated_keeps_its_place, mutations.repeat_a_join_from_the_start),
    (test_rules.test_l02_joining_and_looking_are_one_moment, mutations.look_before_joining),
    (test_rules.test_l03_a_key_that_is_ours_by_a_lost_reply_is_adopted, mutations.never_adopt),
    (test_rules.test_l03_the_remains_of_a_dead_waiter_are_removed, mutations.leave_the_dead),
    (test_rules.test_l03_who_finds_its_contender_missing_joins_at_the_end, mutations.missing_is_head),
    (
        test_rules.test_l03_a_release_wakes_the_head_and_a_take_its_follower_and_nobody_else,
        mutations.follow_the_head,
    ),
    (
        test_rules.test_l03_what_changes_between_look_and_watch_ends_the_watch_at_once,
        mutations.watch_from_now,
    ),
    (test_rules.test_l04_the_head_takes_the_key_without_another_look, mutations.look_before_a_take),
    (
        test_rules.test_l04_the_head_goes_on_watching_when_a_held_key_is_written,
        mutations.take_whatever_the_key_is,
    ),
    (test_rules.test_l05_a_take_that_comes_after_giving_up_is_refused, mutations.take_without_a_check),
    (
        test_rules.test_l05_a_take_of_an_earlier_attempt_does_not_use_the_place_of_a_later_one,
        mutations.take_with_a_check_of_the_session,
    ),
    (test_rules.test_l05_an_unanswered_take_is_followed_by_a_look, mutations.repeat_a_take_blindly),
    (
        test_rules.test_l06_the_head_alone_waits_a_lock_delay_out_by_trying_now_and_then,
        mutations.watch_in_a_lock_delay,
    ),
    (
        test_rules.test_l06_the_head_alone_waits_a_lock_delay_out_by_trying_now_and_then,
        mutations.try_hard_in_a_lock_delay,
    ),
    (
        test_rules.test_l07_a_late_unlock_does_not_free_the_next_hold_of_the_session,
        mutations.unlock_without_a_check,
    ),
    (test_rules.test_l07_an_unanswered_unlock_is_repeated_until_answered, mutations.unlock_once),
    (
        test_rules.test_l07_nothing_new_begins_before_the_unlock_is_answered,
        mutations.let_the_next_begin_before_the_answer,
    ),
    (test_rules.test_l08_who_barged_past_others_joins_the_queue, mutations.never_polite),
    (test_rules.test_l08_who_had_to_wait_joins_the_queue_until_it_finds_nobody, mutations.never_polite),
    (test_rules.test_l08_who_had_to_wait_joins_the_queue_until_it_finds_nobody, mutations.polite_for_ever),
    (
        test_rules.test_l09_a_take_under_way_can_not_slip_into_the_giving_up,
        mutations.give_up_in_the_other_order,
    ),
    (
        test_rules.test_l09_a_key_that_was_got_unknowingly_is_given_back,
        mutations.remove_the_contender_only,
    ),
    (test_rules.test_l10_a_join_that_comes_after_giving_up_is_swept, mutations.no_sweep),
    (
        test_rules.test_l11_the_same_fence_twice_is_an_unlock_that_was_never_applied,
        mutations.accept_any_fence,
    ),
    (
        test_rules.test_l12_who_lost_its_session_gets_a_new_one_and_joins_at_the_end,
        mutations.deaf_to_the_sessions_end,
    ),
    (
        test_rules.test_l12_a_session_that_a_request_finds_gone_is_replaced_at_once,
        mutations.keep_a_session_that_is_gone,
    ),
    (
        test_rules.test_l13_foreign_clients_contend_for_the_key_and_the_queue_stays,
        mutations.leave_the_queue_when_refused,
    ),
    (test_rules.test_l13_a_fair_newcomer_queues_behind_ours, mutations.always_barge),
    (
        test_rules.test_l14_without_permission_for_the_queue_the_key_is_watched,
        mutations.no_way_without_a_queue,
    ),
    (
        test_rules.test_l14_who_can_not_read_the_queue_is_not_its_head,
        mutations.an_unreadable_queue_is_an_empty_one,
    ),
    (
        test_rules.test_l15_a_contender_ends_with_the_session_that_was_to_take_the_lock,
        mutations.contend_with_a_session_of_its_own,
    ),
    (test_rules.test_l16_a_handoff_lists_the_queue_nowhere, mutations.always_list),
    (
        test_rules.test_l16_who_follows_one_that_gave_up_is_not_the_head,
        mutations.who_follows_nobody_is_the_head,
    ),
    (
        test_rules.test_l16_who_follows_one_that_had_barged_is_not_the_head,
        mutations.who_follows_the_holder_is_the_head,
    ),
)


def _name(value: Any) -> str:
    name = str(value.__name__)
    return name[5:8] if name.startswith("test_") else name.strip("_")


@pytest.mark.parametrize(("rule", "mutate"), BROKEN, ids=_name)
def test_a_broken_rule_is_seen(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, rule: Callable[[Stage], None], mutate: Mutate
) -> None:
    mutate(monkeypatch)
    with pytest.raises(AssertionError):
        rule(stage)


def test_every_rule_is_broken_once() -> None:
    names = {name[:8] for name in vars(test_rules) if name.startswith("test_l")}
    assert names == {f"test_l{number:02}" for number in range(1, 17)}
    assert names == {rule.__name__[:8] for rule, _ in BROKEN}
