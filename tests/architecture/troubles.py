"""What users of other clients of Consul have complained of, and the tests that show how it is here: data.

Each entry: the public threads, what they teach, and the tests, as ``file::test``, that fail without it; a
``*`` stands for the rest of a name. Left
out is what is a matter of documentation alone (when not to use a lock), and a barrier, which is not offered.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Trouble:
    """One kind of complaint."""

    threads: str
    lesson: str
    tests: tuple[str, ...]


TROUBLES: tuple[Trouble, ...] = (
    Trouble(
        "hashicorp/consul#18271",
        "A holder that is cut off ends its hold itself, by its own clock",
        (
            "lock/test_loss.py::test_without_contact_it_is_lost_by_its_deadline_and_before_another_can_have_it",
            "unit/recipes/test_session.py::test_it_is_over_at_the_deadline_not_later",
        ),
    ),
    Trouble(
        "hashicorp/consul#9788",
        "The command under a lock is stopped before the lease is over",
        ("cli/test_lock.py::test_the_command_is_dead_before_the_lease_ends_when_nobody_answers",),
    ),
    Trouble(
        "hashicorp/consul#1843",
        "A silent partition is no different: no packet is needed to notice it",
        (
            "lock/test_loss.py::test_a_stopped_agent_costs_the_hold_by_its_deadline",
            "cluster/test_partition.py::test_fifty_holds_are_known_to_be_lost_before_anybody_else_has_them",
        ),
    ),
    Trouble(
        "hashicorp/consul#8736, #2332",
        "A blocking query has a timeout of its own",
        (
            "unit/http/test_blocking.py::test_read_timeout_allows_for_the_servers_jitter",
            "wire/test_time.py::test_a_black_hole_leaves_nothing_unknown",
        ),
    ),
    Trouble(
        "NishanthSpShetty/lignum#34; hashicorp/consul#1041, #1040",
        "404 on a renewal is the end at once",
        ("unit/recipes/test_session.py::test_a_404_is_the_end_at_once",),
    ),
    Trouble(
        "PlayFab/consuldotnet#109",
        "Flag, event, callback and error come from one transition",
        ("lock/test_loss.py::test_a_loss_on_the_server_is_told_at_once_with_its_reason",),
    ),
    Trouble(
        "StackStorm/st2#4015",
        "After its session's loss a client starts over by itself",
        (
            "unit/recipes/test_session.py::test_the_next_need_gets_a_new_session",
            "lock/test_loss.py::test_one_sessions_end_is_told_to_all_its_holds",
        ),
    ),
    Trouble(
        "hashicorp/consul#1162, #1290, #830, #5437",
        "Elections, 500s and 429s within the lease are no loss",
        (
            "lock/test_loss.py::test_a_hiccup_is_jeopardy_and_no_loss",
            "cluster/test_outages.py::test_the_leader_killed_under_a_held_lock",
        ),
    ),
    Trouble(
        "hashicorp/consul#912",
        "A renewal that failed is tried again until the lease is over",
        ("unit/recipes/test_session.py::test_trouble_is_jeopardy_and_ridden_out",),
    ),
    Trouble(
        "hashicorp/consul#3553; hashicorp/terraform#14312, #15545, #16098, #30598",
        "A dropped blocking query is routine",
        ("unit/recipes/test_hold_watches.py::test_trouble_with_a_watch_is_no_loss",),
    ),
    Trouble(
        "silas/node-consul#16, #54, #57; patroni/patroni#945",
        "The read's timeout follows from the wait, with room for the server's jitter",
        ("unit/http/test_blocking.py::test_read_timeout_allows_for_the_servers_jitter",),
    ),
    Trouble(
        "patroni/patroni#522, #543, #2868; vitessio/vitess#8297",
        "Which checks end a session is the user's choice, and none is the default",
        (
            "wire/test_lock_on_the_wire.py::test_a_cold_acquire_makes_a_session_and_looks_first",
            "lock/test_loss.py::test_what_ends_the_session_is_told_at_once",
        ),
    ),
    Trouble(
        "hashicorp/consul#20424, #21518, #3732",
        "A session that the server keeps otherwise than asked for is told",
        (
            "unit/recipes/test_session.py::test_the_servers_ttl_is_adopted",
            "unit/recipes/test_session.py::test_the_lock_delay_paces_lease_and_renewals",
        ),
    ),
    Trouble(
        "hashicorp/consul#4902, #4935, #2371, #5686; docker/libkv#120; docker-archive/leadership#2",
        "After a loss nothing keeps the dead session alive, and the object is free again",
        (
            "unit/recipes/test_session.py::test_an_expired_session_is_destroyed_by_the_reaper_*",
            "lock_kinds/test_reentrant.py::test_after_a_loss_that_was_left_it_can_be_taken_anew",
        ),
    ),
    Trouble(
        "hashicorp/consul#855, #861, #876",
        "A lock that the own session has is adopted",
        ("queue/test_rules.py::test_l03_a_key_that_is_ours_by_a_lost_reply_is_adopted",),
    ),
    Trouble(
        "hashicorp/consul#19327",
        "Threads that share a session exclude each other all the same",
        ("lock/test_exclusion.py::test_threads_exclude_each_other",),
    ),
    Trouble(
        "consuldemocracy/consuldemocracy#4901",
        "A hold can be taken up again after a restart",
        (
            "lock_kinds/test_kept_session.py::test_another_process_goes_on_with_it",
            "lock_kinds/test_kept_session.py::test_the_client_itself_may_go_on_with_it",
        ),
    ),
    Trouble(
        "vitessio/vitess#8309, #8310; WeAreFarmGeek/diplomat#55; hashicorp/consul#780, #2399, #4346",
        "A timeout is an error of its own, and covers the whole call",
        (
            "lock/test_acquire.py::test_a_timeout_names_the_holder_and_takes_its_whole_time",
            "lock/test_acquire.py::test_a_timeout_is_not_restarted_by_wake_ups",
            "lock/test_acquire.py::test_try_acquire_gives_nothing_while_somebody_holds_it",
        ),
    ),
    Trouble(
        "PlayFab/consuldotnet#60; G-Research/consuldotnet#64, #65, #103",
        "A waiting call is cancelled at once",
        (
            "lock/test_acquire.py::test_cancel_ends_all_waiting_calls_at_once",
            "lock/test_async.py::test_cancel_close_and_cancellation_end_a_wait_at_once",
        ),
    ),
    Trouble(
        "hashicorp/consul#1006, #1008, #2767",
        "An acquire tells what stood in the way, and waits only for a lock-delay",
        (
            "lock/test_acquire.py::test_a_lock_delay_is_named_waited_out_and_not_passed",
            "queue/test_rules.py::test_l06_the_head_alone_waits_a_lock_delay_out_by_trying_now_and_then",
        ),
    ),
    Trouble(
        "hashicorp/consul#9469, #7523; Seagate/cortx-hare#10",
        "One waiter wakes, and nobody keeps in step",
        (
            "queue/test_rules.py::test_l03_a_release_wakes_the_head_and_a_take_its_follower_and_nobody_else",
            "unit/recipes/test_session.py::test_renewals_of_clients_that_began_together_fall_out_of_step",
            "unit/http/test_blocking.py::test_jitter_only_lengthens_a_wait",
        ),
    ),
    Trouble(
        "kurtome/python-consul-lock#4; open-craft/opencraft#390, #410, #423",
        "Many short locks are cheap: one session, two requests a hold",
        (
            "lock/test_acquire.py::test_a_warm_pair_costs_two_requests",
            "lock/test_closing.py::test_one_loop_thread_serves_any_number_of_locks",
        ),
    ),
    Trouble(
        "hashicorp/consul#1172, #2347, #2966, #4232, #430; patroni/patroni#1579, #1661",
        "How long a takeover takes can be computed, and holds",
        (
            "unit/http/test_models.py::test_failover_bound",
            "queue/test_failures.py::test_a_holder_that_crashes_is_succeeded_after_the_lock_delay",
        ),
    ),
    Trouble(
        "hashicorp/consul#4508, #1077; vert-x3/vertx-consul-client#56; docker/libkv#67; Ecwid/consul-api#161",
        "No lock-delay and a lock-delay of 0 are two things, and durations are sent with a unit",
        ("unit/http/test_keys_and_durations.py::test_write_duration",),
    ),
    Trouble(
        "patroni/patroni#556; python-consul/python-consul#132; lukas-krecan/ShedLock#319",
        "What TTLs are allowed is the servers' to say, and their refusal is explained",
        (
            "unit/http/test_failures.py::test_table",
            "cli/test_lock.py::test_a_ttl_that_the_server_refuses_is_78",
        ),
    ),
    Trouble(
        "lukas-krecan/ShedLock#340; hashicorp/consul#5327",
        "No session is left behind, and stale ones can be found by name and destroyed",
        (
            "lock/test_acquire.py::test_a_session_that_an_unanswered_create_has_made_is_found_and_destroyed",
            "lock/test_leaving.py::test_ctrl_c_at_any_request_leaves_nothing",
            "lock_kinds/test_stale_sessions.py::test_stale_ones_are_destroyed_and_own_ones_spared",
        ),
    ),
    Trouble(
        "hashicorp/consul#2648",
        "Nothing that a renewal raises ends the renewing, and each failure is told",
        ("unit/recipes/test_session.py::test_trouble_is_jeopardy_and_ridden_out",),
    ),
    Trouble(
        "AcalephStorage/consul-alerts#53; nforgeio/neonKUBE#80; zeroXten/consul-do#1",
        "A TTL is the default: a crashed holder is succeeded",
        ("lock/test_exclusion.py::test_a_killed_holder_is_succeeded",),
    ),
    Trouble(
        "hashicorp/consul#933, #1940, #4661, #5524; silas/node-consul#52",
        "A semaphore can be resized; a record with an array of holders is read; other limits are told",
        (
            "semaphore/test_record.py::test_under_load_the_limit_then_in_force_is_kept",
            "semaphore/test_record.py::test_a_list_of_holders_and_unknown_fields_are_kept",
            "semaphore/test_record.py::test_another_limit_is_a_conflict_and_leaves_nothing",
        ),
    ),
    Trouble(
        "hashicorp/consul#2621, #5358; allegro/consul-recipes#13; cortexproject/cortex#1708",
        "One engine for blocking queries knows the rules of the index, and keeps a pace",
        (
            "unit/http/test_blocking.py::test_an_index_that_goes_back_is_asked_afresh_and_the_data_judged",
            "unit/http/test_blocking.py::test_no_more_than_the_stock_and_the_pace_allow",
            "election/test_observing.py::test_an_index_that_goes_back_costs_no_news_and_repeats_none",
        ),
    ),
    Trouble(
        "hashicorp/consul#7527, #7259, #8628, #11030, #12487, #9169; azimuth-cloud/zenith#114",
        "Renewals wait for nobody, and a 429 is no loss",
        (
            "wire/test_turns.py::test_renewals_and_watches_wait_for_nobody",
            "lock/test_acquire.py::test_refusals_for_a_while_are_ridden_out",
        ),
    ),
    Trouble(
        "python-consul/python-consul#45, #103, #183; poppyred/python-consul2#4; criteo/py-consul#48",
        "Every exchange ends at its limit",
        ("wire/test_time.py::test_a_slow_reply_ends_at_the_limit",),
    ),
    Trouble(
        "python-consul/python-consul#144; celery/celery#5605",
        "Threads and forked processes never read each other's replies",
        (
            "lock/test_process.py::test_a_childs_exit_does_no_io_and_leaves_the_parent_alone",
            "lock/test_process.py::test_a_fork_in_the_midst_of_waiting_threads_disturbs_nobody",
        ),
    ),
    Trouble(
        "python-consul/python-consul#181",
        "The server for users' tests is held against a real one",
        ("conformance/test_differential.py::test_*",),
    ),
    Trouble(
        "python-consul/python-consul#164, #69, #26, #5, #251; criteo/py-consul#96",
        "A lock shared with ``consul lock`` and the Go client excludes both",
        (
            "queue/test_agent.py::test_consul_lock_and_ours_alternate",
            "semaphore/test_interop.py::test_both_keep_to_the_limit_where_they_came_first",
            "election/test_interop.py::test_consul_lock_and_an_election_lead_in_turn",
        ),
    ),
    Trouble(
        "python-consul/python-consul#235; hashicorp/nomad#2594; hashicorp/consul#8602",
        "The official variables and Unix sockets are understood",
        (
            "unit/config/test_settings.py::test_addresses",
            "unit/config/test_credentials.py::test_which_token_counts",
        ),
    ),
    Trouble(
        "hashicorp/consul-esm#107; hashicorp/terraform#19963, #19979; hashicorp/consul#8423, #17854",
        "A missing permission is named, and asked for beforehand by the doctor",
        (
            "semaphore/test_permissions.py::test_a_missing_rule_is_named_and_nothing_is_left",
            "election/test_permissions.py::test_a_missing_rule_is_named_and_nothing_is_left",
            "cli/test_doctor.py::test_missing_rules_are_named",
        ),
    ),
    Trouble(
        "hashicorp/consul#4886, #5373, #6828, #14212; patroni/patroni#1026",
        "A session in another datacenter fails with what to do about it",
        ("unit/http/test_failures.py::test_table",),
    ),
    Trouble(
        "hashicorp/terraform#22174, #15545, #19296, #25837; square/p2#167",
        "Who holds is told, and an operator can take it from that very holder",
        (
            "lock/test_acquire.py::test_break_lock_names_whom_it_means",
            "lock/test_acquire.py::test_holder_tells_whether_a_lock_delay_is_in_force",
        ),
    ),
    Trouble(
        "hashicorp/consul#2022, #873, #797, #1210",
        "What a command has started is signalled and killed with it",
        (
            "cli/test_lock.py::test_signals_reach_what_the_command_started",
            "cli/test_lock.py::test_what_the_command_leaves_running_is_killed",
        ),
    ),
    Trouble(
        "hashicorp/consul#16107; hashicorp/consul-replicate#14, #18",
        "A deleted key is a loss with a reason of its own",
        (
            "queue/test_failures.py::test_a_deleted_key_goes_to_the_head_and_its_holder_is_told",
            "cli/test_lock.py::test_a_deleted_key_stops_the_command",
        ),
    ),
    Trouble(
        "rickfast/consul-client#393; PlayFab/consuldotnet#4; gmr/consulate#63, #74",
        "Followers see each change of the leader, and work is cancelled at a loss",
        (
            "election/test_observing.py::test_each_leader_and_each_value_is_seen_once",
            "lock/test_async.py::test_a_loss_cancels_the_body_and_is_told",
        ),
    ),
    Trouble(
        "hashicorp/consul#2534",
        "The fence comes with the grant itself",
        (
            "lock/test_acquire.py::test_what_a_hold_tells",
            "lock/test_acquire.py::test_fences_rise_over_clients_and_over_the_keys_deletion",
        ),
    ),
)
