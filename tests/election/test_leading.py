"""Being elected, leading, and not leading any more, in blocking code."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from consul_coord import (
    LOCK_FLAGS,
    AcquireCancelled,
    AcquireTimeout,
    Client,
    ClientClosed,
    InvalidArgument,
    InvalidKey,
    KeyConflict,
    LeaderElection,
    LeadershipLost,
    LossReason,
    NotHeld,
    ReleaseOutcome,
    SessionNotFound,
    TransportError,
    TxnFailed,
    TxnOp,
    ValueTooLarge,
    leader,
)
from consul_coord.events import Elected, Failed, Resigned
from consul_coord.recipes.election.notes import heir_key, term_key
from tests.election.conftest import QUICK, SPEC
from tests.election.waiting import PATIENCE, Told, queued, until
from tests.support.proxy import Fault, FaultProxy, Lose
from tests.support.stalls import lasting

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord import Leadership
    from tests.election.conftest import MakeClient, Stand


def test_the_only_candidate_leads_with_what_it_advertises(stand: Stand, client: Client, key: str) -> None:
    election = stand(value="10.0.0.5:80")
    me = election.wait_for_leadership(timeout=PATIENCE)
    assert (me.is_held, me.term, me.key) == (True, me.fence, key)
    assert (election.is_leader, election.term, election.leadership) == (True, me.term, me)
    found = leader(client, key)
    assert found is not None
    assert (found.text, found.session, found.term) == ("10.0.0.5:80", me.session, me.term)
    assert found.node
    assert me.verify()


def test_a_value_can_be_read_as_json(stand: Stand, client: Client, key: str) -> None:
    stand(value='{"port": 80}').wait_for_leadership(timeout=PATIENCE)
    found = leader(client, key)
    assert found is not None
    assert found.json() == {"port": 80}


def test_nobody_leads_a_key_that_nobody_holds(stand: Stand, client: Client, key: str) -> None:
    assert leader(client, key) is None
    election = stand()
    election.wait_for_leadership(timeout=PATIENCE)
    election.stop()
    assert client.kv.get(key).value is not None
    assert leader(client, key) is None


def test_a_second_candidate_waits_and_is_woken_by_the_resignation(stand: Stand) -> None:
    first = stand()
    term = first.wait_for_leadership(timeout=PATIENCE).term
    second = stand()
    queued(second, 1)
    assert not second.is_leader
    assert (second.term, second.leadership) == (None, None)
    assert first.resign(pause=60) is ReleaseOutcome.RELEASED
    assert not first.is_leader
    with lasting(most=1.0):  # no lock-delay and no pause
        assert second.wait_for_leadership(timeout=PATIENCE).term > term


def test_who_resigns_is_a_candidate_again(stand: Stand) -> None:
    election = stand()
    term = election.wait_for_leadership(timeout=PATIENCE).term
    assert election.resign() is ReleaseOutcome.RELEASED
    assert election.wait_for_leadership(timeout=PATIENCE).term > term


def test_a_note_whose_write_had_no_answer_goes_with_the_leadership(
    make_client: MakeClient, address: str, client: Client, key: str
) -> None:
    with FaultProxy(address) as proxy:
        election = LeaderElection(make_client(address=proxy.address, timeout=0.3), key)
        with election:
            me = election.wait_for_leadership(timeout=PATIENCE)
            proxy.add(Fault(lose=Lose.REPLY, path="/v1/txn", containing=b'"set"', times=10_000))
            with pytest.raises(TransportError):
                election.proclaim(b"here")
            proxy.clear()
            note = client.kv.get(term_key(key)).value
            assert note is not None
            assert str(me.term).encode() in note.value, "it was applied"
        until(lambda: client.kv.get(term_key(key)).value is None, "the note is gone")


@pytest.mark.slow
@pytest.mark.parametrize("undone", ["at once", "later"])
def test_the_note_of_an_election_without_an_answer_goes_with_what_else_that_has_left(
    make_client: MakeClient, address: str, client: Client, key: str, undone: str
) -> None:
    with FaultProxy(address) as proxy:
        for elects_or_finds_out in (term_key(key).encode(), b'"check-session"'):
            proxy.add(Fault(lose=Lose.REPLY, path="/v1/txn", containing=elects_or_finds_out, times=10_000))
        with LeaderElection(make_client(address=proxy.address), key) as election:
            until(lambda: client.kv.get(term_key(key)).value is not None, "it is elected")
            assert not election.is_leader
            if undone == "later":
                proxy.add(Fault(lose=Lose.REQUEST, path=f"/v1/kv/{key}", times=10_000))
        proxy.clear()
        until(lambda: client.kv.keys(key + "/").value == (), "nothing is left")
        until(lambda: (found := client.kv.get(key).value) and found.session is None, "the key is free")


def test_a_note_that_an_earlier_leadership_left_goes_with_the_next_one(
    stand: Stand, client: Client, key: str
) -> None:
    """Of the same session it has the same value, and Consul takes a write of that for no change."""
    election, note = stand(), term_key(key)
    election.wait_for_leadership(timeout=PATIENCE)
    left = client.kv.get(note).value
    assert left is not None
    election.stop()
    until(lambda: client.kv.get(note).value is None, "the note is gone")
    client.kv.put(note, left.value)
    election.start()
    election.wait_for_leadership(timeout=PATIENCE)
    election.stop()
    until(lambda: client.kv.get(note).value is None, "the note is gone again")


def test_resigning_without_leading_changes_nothing_but_with_a_pause_one_leaves_the_queue(
    stand: Stand,
) -> None:
    first = stand()
    first.wait_for_leadership(timeout=PATIENCE)
    second = stand()
    queued(first, 1)
    assert second.resign() is ReleaseOutcome.ALREADY_LOST
    assert second.resign(pause=60) is ReleaseOutcome.ALREADY_LOST
    queued(first, 0)
    assert first.is_leader


def test_a_block_that_leads_resigns_at_its_end_and_the_candidacy_goes_on(stand: Stand) -> None:
    election = stand()
    with election.wait_for_leadership(timeout=PATIENCE) as me:
        assert election.is_leader
    assert me.release() is ReleaseOutcome.RELEASED
    assert election.wait_for_leadership(timeout=PATIENCE).term > me.term


def test_start_and_stop_may_be_called_again(stand: Stand, key: str) -> None:
    election = stand()
    me = election.wait_for_leadership(timeout=PATIENCE)
    election.start()
    assert election.is_leader
    assert election.leadership is me
    for _ in range(2):
        election.stop()
        assert not election.is_leader
    with pytest.raises(AcquireCancelled, match=f"^the election on '{key}' was stopped: start"):
        election.wait_for_leadership(timeout=PATIENCE)
    election.start()
    assert election.wait_for_leadership(timeout=PATIENCE).term > me.term


def test_the_end_of_the_latest_leadership_is_told_also_after_a_stop_and_a_start(stand: Stand) -> None:
    election = stand()
    election.wait_for_leadership(timeout=PATIENCE)
    election.stop()
    stand().wait_for_leadership(timeout=PATIENCE)
    for _ in range(2):
        election.start()
        assert election.wait_for_loss(timeout=PATIENCE) is LossReason.RESIGNED
        election.stop()


def test_stopping_while_waiting_leaves_nothing_and_ends_who_waits(
    stand: Stand, client: Client, key: str
) -> None:
    leading = stand()
    leading.wait_for_leadership(timeout=PATIENCE)
    waiting = stand()
    queued(leading, 1)
    ended: list[BaseException] = []

    def wait() -> None:
        with pytest.raises(AcquireCancelled) as caught:
            waiting.wait_for_leadership()
        ended.append(caught.value)

    thread = threading.Thread(target=wait)
    thread.start()
    waiting.stop()
    thread.join(PATIENCE)
    assert len(ended) == 1
    until(lambda: client.kv.keys(key + "/").value == (term_key(key),), "the leader's note alone is left")


def test_waiting_in_vain_says_so(stand: Stand) -> None:
    first = stand()
    first.wait_for_leadership(timeout=PATIENCE)
    waiting = stand()
    queued(first, 1)
    with pytest.raises(AcquireTimeout) as caught:
        waiting.wait_for_leadership(timeout=0.2)
    (holder,) = caught.value.blocker.holders
    assert f"held by {holder.value.decode()} (" in str(caught.value)
    assert " within 0." in str(caught.value)


def test_waiting_in_vain_names_the_leaders_node_from_a_reading_within_the_wait(
    stand: Stand, make_client: MakeClient, address: str, key: str
) -> None:
    first = stand()
    first.wait_for_leadership(timeout=PATIENCE)
    found = leader(make_client(), key)
    assert found is not None
    assert found.node
    with FaultProxy(address) as proxy:
        through = make_client(address=proxy.address)
        waiting = stand(client=through)
        queued(first, 1)
        with lasting(least=1.0, most=1.05, calls=2), pytest.raises(AcquireTimeout) as caught:
            waiting.wait_for_leadership(timeout=1.0)
        (holder,) = caught.value.blocker.holders
        assert (holder.node, holder.session) == (found.node, found.session)
        assert f" (node {found.node}, session {found.session}); place 1 in the queue" in str(caught.value)
        silent = proxy.add(Fault(lose=Lose.TIME, path="/v1/session/info/", times=99))
        with (
            lasting(least=1.0, most=1.05, calls=2),
            pytest.raises(AcquireTimeout, match="node unknown, session"),
        ):
            waiting.wait_for_leadership(timeout=1.0)
        assert silent.hits == 1
        proxy.clear()
        proxy.add(Fault(lose=Lose.AGENT, path="/v1/session/info/", status=403, times=99))
        with pytest.raises(AcquireTimeout, match="node unknown, session"):
            waiting.wait_for_leadership(timeout=0.2)
        waiting.stop()
        through.close()


def test_who_is_no_candidate_at_present_is_told_so(stand: Stand) -> None:
    unhealthy = stand(health=lambda: False)
    with pytest.raises(AcquireTimeout, match="it does not stand at present") as caught:
        unhealthy.wait_for_leadership(timeout=0.1)
    assert caught.value.__cause__ is None


@pytest.mark.slow
def test_a_loss_is_told_with_its_reason(stand: Stand, client: Client, key: str) -> None:
    told = Told()
    election = stand(on_lost=told.say)
    me = election.wait_for_leadership(timeout=PATIENCE)
    with pytest.raises(TimeoutError):
        election.wait_for_loss(timeout=0)
    client.session.destroy(me.session)
    assert election.wait_for_loss(timeout=PATIENCE) is LossReason.SESSION_GONE
    assert not me.is_held
    assert me.lost.is_set()
    with pytest.raises(LeadershipLost) as caught:
        me.check()
    assert (caught.value.key, caught.value.fence) == (key, me.term)
    told.wait_for(LossReason.SESSION_GONE)
    with pytest.raises(TxnFailed):
        client.txn(*me.guard(), TxnOp.set(f"{key}-written", b"x"))
    assert election.wait_for_leadership(timeout=PATIENCE).term > me.term


def test_a_leadership_given_up_elsewhere_is_lost_to_who_works_under_it(stand: Stand) -> None:
    told = Told()
    election = stand()
    me = election.wait_for_leadership(timeout=PATIENCE)
    me.check()
    me.on_lost(told.say)
    resigning = threading.Thread(target=election.resign, kwargs={"pause": 60})
    resigning.start()
    assert me.lost.wait(PATIENCE)
    with pytest.raises(LeadershipLost) as caught:
        me.check()
    assert caught.value.reason is me.reason is LossReason.RESIGNED
    told.wait_for(LossReason.RESIGNED)
    resigning.join(PATIENCE)


@pytest.mark.parametrize("act", ["proclaim", "transfer_to", "wait_for_loss"])
def test_what_only_a_leader_can_do(stand: Stand, client: Client, key: str, act: str) -> None:
    stand().wait_for_leadership(timeout=PATIENCE)
    acts: dict[str, Callable[[LeaderElection], object]] = {
        "proclaim": lambda election: election.proclaim("x"),
        "transfer_to": lambda election: election.transfer_to("x"),
        "wait_for_loss": lambda election: election.wait_for_loss(timeout=1),
    }
    for follower in (stand(), LeaderElection(client, key)):
        with pytest.raises(NotHeld, match=f"this is not the leader of '{key}': look at is_leader") as caught:
            acts[act](follower)
        assert caught.value.key == key


def test_who_has_not_started_is_told_to(client: Client, key: str) -> None:
    right = rf"^the election on '{key}' was not started in this process: call start\(\)$"
    with pytest.raises(AcquireCancelled, match=right) as caught:
        LeaderElection(client, key).wait_for_leadership(timeout=PATIENCE)
    assert caught.value.key == key


def test_an_heir_that_does_not_stand_is_refused_with_where_to_look(stand: Stand, key: str) -> None:
    election = stand()
    me = election.wait_for_leadership(timeout=PATIENCE)
    with pytest.raises(SessionNotFound, match=rf"to lead '{key}': candidates\(\) lists them$"):
        election.transfer_to("x")
    assert me.is_held


def test_a_leader_proclaims_and_keeps_its_term(stand: Stand, client: Client, key: str) -> None:
    election = stand(value="one")
    me = election.wait_for_leadership(timeout=PATIENCE)
    for value in ("two", "three"):
        election.proclaim(value)
        found = leader(client, key)
        assert found is not None
        assert (found.text, found.term) == (value, me.term)
        assert found.since_index > me.term
    me.put(b"four")
    found = leader(client, key)
    assert found is not None
    assert (found.value, found.term) == (b"four", me.term)
    client.txn(*me.guard(), TxnOp.set(f"{key}-written", b"x"))
    election.resign()
    again = election.wait_for_leadership(timeout=PATIENCE)
    found = leader(client, key)
    assert found is not None
    assert (found.text, found.term) == ("one", again.term)
    election.stop()
    until(lambda: client.kv.keys(key + "/").value == (), "the note of the term is gone")


def test_a_leader_keeps_its_term_when_somebody_else_writes_the_key(
    stand: Stand, client: Client, key: str
) -> None:
    election = stand(value="one")
    me = election.wait_for_leadership(timeout=PATIENCE)

    def seen() -> tuple[str, int]:
        found = leader(client, key)
        assert found is not None
        return found.text, found.term

    client.kv.put(key, b"by hand", flags=LOCK_FLAGS)
    assert seen() == ("by hand", me.term)
    for value in ("two", "three"):
        election.proclaim(value)
        assert seen() == (value, me.term)


def test_who_lost_the_leadership_cannot_proclaim(stand: Stand, client: Client) -> None:
    election = stand()
    me = election.wait_for_leadership(timeout=PATIENCE)
    election.resign(pause=60)
    other = stand(value="other")
    other.wait_for_leadership(timeout=PATIENCE)
    with pytest.raises(LeadershipLost):
        me.put("late")
    with pytest.raises(NotHeld):
        election.proclaim("late")
    found = leader(client, election.key)
    assert found is not None
    assert found.text == "other"


def test_the_named_heir_goes_first_and_the_others_keep_their_order(
    stand: Stand, client: Client, key: str
) -> None:
    first = stand(value="first")
    first.wait_for_leadership(timeout=PATIENCE)
    others = []
    for number in range(4):
        others.append(stand(value=str(number)))
        queued(first, number + 1)
    heir = first.candidates()[2]
    with lasting(most=1.0):  # sooner than others would let it go first
        first.transfer_to(heir.session)
        others[2].wait_for_leadership(timeout=PATIENCE)
    until(lambda: len(first.candidates()) == 4, "the former leader waits again")
    assert [each.value for each in first.candidates()] == [b"0", b"1", b"3", b"first"]
    assert heir_key(key) not in client.kv.keys(key + "/").value
    others[2].resign(pause=60)
    others[0].wait_for_leadership(timeout=PATIENCE)


def test_the_next_in_the_queue_can_be_the_heir(stand: Stand) -> None:
    first, second = stand(), None
    first.wait_for_leadership(timeout=PATIENCE)
    second = stand()
    queued(first, 1)
    first.transfer_to(first.candidates()[0].session)
    second.wait_for_leadership(timeout=PATIENCE)


def test_who_leaves_the_queue_leaves_the_note_of_another_heir(stand: Stand, client: Client, key: str) -> None:
    first, second = stand(), stand()
    until(lambda: first.is_leader or second.is_leader, "one of them leads")
    leads, waits = (first, second) if first.is_leader else (second, first)
    idle = client.session.create(SPEC)
    assert client.kv.acquire(f"{key}/.wait/{idle}", idle)
    queued(leads, 2)
    leads.transfer_to(idle)
    note = client.kv.get(heir_key(key)).value
    assert note is not None
    until(lambda: leads.leadership is None, "it does not lead any more")
    waits.resign(pause=60)
    waits.stop()
    leads.stop()
    # A request that was under way at the stop may reach the server after it: its place is looked for again.
    left = (f"{key}/.wait/{idle}", heir_key(key))
    until(lambda: client.kv.keys(f"{key}/.wait/").value == left, "both have left the queue")
    assert client.kv.get(heir_key(key)).value == note


def test_an_heir_behind_a_value_too_large_to_pass_is_refused_and_nothing_given_up(stand: Stand) -> None:
    first = stand()
    first.wait_for_leadership(timeout=PATIENCE)
    for number, value in enumerate(["x" * 200_000, "heir"], 1):
        stand(value=value)
        queued(first, number)
    large, heir = first.candidates()
    with pytest.raises(
        ValueTooLarge, match=f"the heir .session {large.session}. twice, and that has 200000 b"
    ):
        first.transfer_to(heir.session)
    assert first.is_leader
    first.transfer_to(large.session)
    until(lambda: not first.is_leader, "the first candidate of the queue takes its turn")


def test_an_heir_that_does_not_stand_is_refused_and_nothing_given_up(stand: Stand) -> None:
    first = stand()
    first.wait_for_leadership(timeout=PATIENCE)
    stand()
    queued(first, 1)
    with pytest.raises(SessionNotFound):
        first.transfer_to("5f4dcc3b-5aa7-65d6-1d83-27deb882cf99")
    assert first.is_leader


def test_an_heir_that_does_not_come_is_waited_for_a_bounded_time(
    stand: Stand, client: Client, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consul_coord.recipes.election.notes.HONOURED", 1.0)
    first = stand()
    first.wait_for_leadership(timeout=PATIENCE)
    second = stand()
    queued(first, 1)
    # A candidate that queues and does nothing else.
    idle = client.session.create(SPEC)
    assert client.kv.acquire(f"{key}/.wait/{idle}", idle)
    queued(first, 2)
    with lasting(least=0.8, most=5.0):
        first.transfer_to(idle)
        second.wait_for_leadership(timeout=PATIENCE)
    client.session.destroy(idle)


def test_what_callbacks_are_told_comes_once_and_in_order(stand: Stand, make_client: MakeClient) -> None:
    told = Told()
    client = make_client(observer=told)
    election = stand(
        client=client,
        value="v",
        on_elected=lambda me: told.say("elected", me.term, me.is_held),
        on_lost=lambda reason: told.say("lost", reason),
    )
    terms = []
    for _ in range(5):
        terms.append(election.wait_for_leadership(timeout=PATIENCE).term)
        election.resign()
    until(lambda: len(told.news) >= 10, "all callbacks")
    election.stop()
    assert [news[0] for news in told.news[:10]] == ["elected", "lost"] * 5
    assert [news[1] for news in told.news[:10:2]] == terms
    assert terms == sorted(set(terms))
    assert told.threads == {"consul-coord-callbacks"}
    until(lambda: len(told.seen(Resigned)) >= 5, "the events")
    assert [event.term for event in told.seen(Elected)[:5] if isinstance(event, Elected)] == terms


def test_changes_of_the_leader_are_told_to_followers(stand: Stand) -> None:
    told = Told()
    first = stand(value="one")
    first.wait_for_leadership(timeout=PATIENCE)
    stand(
        value="two",
        on_change=lambda info: told.say(None if info is None else info.text),
        health=lambda: False,
    )
    told.wait_for("one")
    first.proclaim("uno")
    told.wait_for("one", "uno")
    first.stop()
    told.wait_for("one", "uno", None)


@pytest.mark.parametrize("error", [ValueError("cannot start"), SystemExit("cannot start")])
def test_an_error_of_on_elected_is_reported_and_resigns_and_the_candidacy_goes_on(
    stand: Stand, make_client: MakeClient, error: BaseException
) -> None:
    told = Told()
    terms = []

    def elected(me: Leadership) -> None:
        terms.append(me.term)
        if len(terms) == 1:
            raise error

    election = stand(client=make_client(observer=told), on_elected=elected, on_lost=told.say)
    until(lambda: len(terms) == 2, "elected again")
    told.wait_for(LossReason.RESIGNED)
    until(lambda: told.seen(Failed), "the report")
    (failed,) = told.seen(Failed)
    assert isinstance(failed, Failed)
    assert f"{type(error).__name__}: cannot start" in failed.error
    assert election.key in failed.where


def test_an_error_of_on_lost_is_reported_and_ends_nothing(stand: Stand, make_client: MakeClient) -> None:
    told = Told()

    def lost(reason: LossReason) -> None:
        raise ValueError(reason)

    election = stand(client=make_client(observer=told), on_lost=lost)
    term = election.wait_for_leadership(timeout=PATIENCE).term
    election.resign()
    assert election.wait_for_leadership(timeout=PATIENCE).term > term
    until(lambda: told.seen(Failed), "the report")


def test_only_the_healthy_are_candidates(stand: Stand) -> None:
    state = {"healthy": False}
    told = Told()
    election = stand(health=lambda: state["healthy"], health_interval=0.02, on_lost=told.say)
    with pytest.raises(AcquireTimeout):
        election.wait_for_leadership(timeout=0.3)
    assert election.candidates() == ()
    state["healthy"] = True
    me = election.wait_for_leadership(timeout=PATIENCE)
    state["healthy"] = False
    assert me.lost.wait(PATIENCE)
    told.wait_for(LossReason.RESIGNED)
    other = stand()
    other.wait_for_leadership(timeout=PATIENCE)


def test_a_health_predicate_that_raises_from_the_start_is_reported_once(
    stand: Stand, make_client: MakeClient
) -> None:
    told = Told()

    def health() -> bool:
        told.say("asked")
        raise ValueError("no idea")

    stand(client=make_client(observer=told), health=health, health_interval=0.02)
    until(lambda: len(told.news) > 3, "more looks")
    assert len(told.seen(Failed)) == 1


@pytest.mark.parametrize("error", [ValueError("no idea"), SystemExit("no idea")])
def test_a_health_predicate_that_raises_counts_as_false_and_is_reported_once(
    stand: Stand, make_client: MakeClient, error: BaseException
) -> None:
    told = Told()
    state = {"fine": True}

    def health() -> bool:
        told.say("asked")
        if state["fine"]:
            return True
        raise error

    election = stand(client=make_client(observer=told), health=health, health_interval=0.02)
    me = election.wait_for_leadership(timeout=PATIENCE)
    state["fine"] = False
    assert me.lost.wait(PATIENCE)
    asked = len(told.news)
    until(lambda: len(told.news) > asked + 3, "more looks")
    assert len(told.seen(Failed)) == 1


def test_low_priority_waits_for_its_delay_and_never_stands_in_the_way(stand: Stand) -> None:
    first = stand()
    first.wait_for_leadership(timeout=PATIENCE)
    low = stand(priority_delay=0.5)
    second = stand()
    queued(first, 1)
    first.stop()
    second.wait_for_leadership(timeout=PATIENCE)
    assert not low.is_leader
    started = time.monotonic()
    second.stop()
    low.wait_for_leadership(timeout=PATIENCE)
    assert time.monotonic() - started >= 0.4


def test_what_was_refused_is_no_problem_of_a_candidate_that_waits_for_its_turn(
    make_client: MakeClient, key: str, stand: Stand
) -> None:
    client, operator = make_client(), make_client()
    operator.kv.put(key, b"mine")
    election = stand(client=client)
    until(lambda: isinstance(election.problem, KeyConflict), "the problem")
    election.resign(pause=0.5)
    operator.kv.delete(key)
    stand().wait_for_leadership(timeout=PATIENCE)
    until(election.candidates, "it waits")
    until(lambda: election.problem is None, "it has no problem")
    assert client.ready()


def test_a_key_that_is_something_else_is_a_problem_until_it_is_not(
    stand: Stand, client: Client, key: str
) -> None:
    client.kv.put(key, b"settings")
    election = stand()
    until(lambda: isinstance(election.problem, KeyConflict), "the problem")
    with pytest.raises(AcquireTimeout) as caught:
        election.wait_for_leadership(timeout=0)
    assert isinstance(caught.value.__cause__, KeyConflict)
    assert str(caught.value.__cause__) in str(caught.value)
    pair = client.kv.get(key).value
    assert pair is not None
    assert pair.value == b"settings"
    client.kv.delete(key)
    election.wait_for_leadership(timeout=PATIENCE)
    assert election.problem is None


@pytest.mark.slow
def test_foreign_candidates_take_part_where_their_flags_are_accepted(
    stand: Stand, client: Client, key: str
) -> None:
    foreign = client.session.create(SPEC)
    assert client.kv.acquire(key, foreign, value="by hand")
    refused = stand()
    until(lambda: isinstance(refused.problem, KeyConflict), "the problem")
    refused.stop()
    election = stand(accept_flags=(0,), value="ours")
    queued(election, 1)
    found = leader(client, key)
    assert found is not None
    assert (found.text, found.session) == ("by hand", foreign)
    assert client.kv.release(key, foreign)
    term = election.wait_for_leadership(timeout=PATIENCE).term
    assert not client.kv.acquire(key, foreign, value="by hand")
    election.resign(pause=0.5)
    until(lambda: client.kv.acquire(key, foreign, value="by hand"), "their turn")
    queued(election, 1)
    client.session.destroy(foreign)
    assert election.wait_for_leadership(timeout=PATIENCE).term > term


def test_closing_the_client_ends_leading_and_is_told(
    make_client: MakeClient, client: Client, key: str
) -> None:
    told = Told()
    closing = make_client()
    election = LeaderElection(closing, key, on_lost=told.say, retry_wait=QUICK)
    election.start()
    me = election.wait_for_leadership(timeout=PATIENCE)
    closing.close()
    assert not me.is_held
    assert told.news == [LossReason.CLIENT_CLOSED]
    with pytest.raises(ClientClosed):
        election.start()
    election.stop()
    assert leader(client, key) is None
    assert client.kv.keys(key + "/").value == ()


def test_closing_the_client_is_told_to_each_call_that_waits_for_leadership(
    stand: Stand, make_client: MakeClient, key: str
) -> None:
    """Also to a call that hears of the closing as its candidate does, before it is ended itself."""
    stand().wait_for_leadership(timeout=PATIENCE)
    errors: list[BaseException] = []
    for number in range(20):
        closing = make_client()
        waiting = LeaderElection(closing, key)
        waiting.start()
        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(waiting.wait_for_leadership, timeout=PATIENCE)
            threading.Event().wait(0.01 * (number % 4))  # it looks, joins the queue, or waits in it
            closing.close()
            error = call.exception()
            assert error is not None
            errors.append(error)
    assert {type(error) for error in errors} == {ClientClosed}


def test_closing_the_client_of_a_waiting_candidate_leaves_nothing(
    stand: Stand, make_client: MakeClient, client: Client, key: str
) -> None:
    stand().wait_for_leadership(timeout=PATIENCE)
    closing = make_client()
    waiting = LeaderElection(closing, key)
    waiting.start()
    queued(waiting, 1)
    (candidate,) = waiting.candidates()
    assert client.session.info(candidate.session).value is not None
    closing.close()
    until(lambda: client.kv.keys(key + "/").value == (term_key(key),), "the queue is empty")
    assert client.session.info(candidate.session).value is None


def test_two_elections_of_one_client_on_one_key_take_turns(stand: Stand, client: Client) -> None:
    one, two = stand(client=client), stand(client=client)
    until(lambda: one.is_leader or two.is_leader, "a leader")
    leading, waiting = (one, two) if one.is_leader else (two, one)
    assert not waiting.is_leader
    leading.stop()
    waiting.wait_for_leadership(timeout=PATIENCE)
    assert client.stats().sessions_created == 1


@pytest.mark.parametrize(
    "settings",
    [
        {"retry_wait": (2.0, 1.0)},
        {"retry_wait": (-1.0, 1.0)},
        {"priority_delay": -1.0},
        {"priority_delay": float("nan")},
        {"health_interval": 0.0},
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, object]) -> None:
    with Client() as client, pytest.raises(InvalidArgument):
        LeaderElection(client, "k", **settings)  # type: ignore[arg-type]


def test_a_key_that_cannot_be_is_refused() -> None:
    with Client() as client, pytest.raises(InvalidKey):
        LeaderElection(client, "/k")
