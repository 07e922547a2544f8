"""Doing a leader's work in the caller's thread: ``run`` and its decorator form."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import anyio
import pytest

from consul_coord import InvalidArgument, LeaderElection, LeadershipLost, Lock, LossReason
from consul_coord.events import Failed, logger
from tests.election.conftest import QUICK
from tests.election.waiting import PATIENCE, Told, queued, until

if TYPE_CHECKING:
    from consul_coord import Client, Leadership
    from tests.election.conftest import MakeClient, Stand


def test_work_is_called_at_each_election_on_the_callers_thread(client: Client, key: str) -> None:
    told = Told()

    def work(me: Leadership) -> None:
        told.say(me.term)
        assert me.is_held

    election = LeaderElection(client, key, retry_wait=QUICK)
    election.run(work, until=lambda: len(told.news) == 3)
    assert told.news == sorted(set(told.news))
    assert told.threads == {threading.current_thread().name}
    assert not election.is_leader, "what run has started it has stopped"


def test_an_error_of_the_work_is_reported_and_resigns_and_the_next_election_calls_it_again(
    make_client: MakeClient, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    told = Told()

    def work(me: Leadership) -> None:
        told.say(me.term)
        if len(told.news) == 1:
            raise ValueError("broken")

    LeaderElection(make_client(observer=told), key, retry_wait=QUICK).run(
        work, until=lambda: len(told.news) == 2
    )
    until(lambda: told.seen(Failed), "the report")
    (failed,) = told.seen(Failed)
    assert isinstance(failed, Failed)
    assert "ValueError: broken" in failed.error
    assert "the leader's work" in failed.where
    assert 'raise ValueError("broken")' in caplog.text, "the log shows where"


def test_work_that_would_have_to_be_awaited_is_refused_at_its_first_call(
    make_client: MakeClient, key: str
) -> None:
    told = Told()

    def work(me: Leadership) -> object:
        told.say(me.term)
        return anyio.sleep(1.0)

    election = LeaderElection(make_client(observer=told), key, retry_wait=QUICK)
    with pytest.raises(InvalidArgument, match="fn returned coroutine, and nothing awaits it here"):
        election.run(work)
    assert len(told.news) == 1
    assert not election.is_leader
    assert told.seen(Failed) == []


def test_what_the_work_had_when_it_failed_is_given_back_before_the_next_election(
    make_client: MakeClient, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error refers to the frames of the work, and so to the locks that it dropped."""
    monkeypatch.setattr(logger, "disabled", True)  # pytest keeps what is logged, the traceback included
    client, other = make_client(), make_client()

    def work(_: Leadership) -> None:
        forgotten = Lock(client, f"{key}.2").acquire(timeout=PATIENCE)
        raise ValueError(forgotten.key)

    def is_free() -> bool:
        Lock(other, f"{key}.2").acquire(timeout=PATIENCE).release()
        return True

    LeaderElection(client, key, retry_wait=QUICK).run(work, until=is_free)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_program_goes_on_after_resigning(
    stand: Stand, client: Client, key: str, error: type[BaseException]
) -> None:
    def work(me: Leadership) -> None:
        raise error

    election = LeaderElection(client, key, retry_wait=QUICK)
    with pytest.raises(error):
        election.run(work)
    assert not election.is_leader
    stand().wait_for_leadership(timeout=PATIENCE)


@pytest.mark.slow
def test_the_loss_is_visible_to_the_work_and_is_no_error(
    make_client: MakeClient, client: Client, key: str
) -> None:
    told = Told()

    def work(me: Leadership) -> None:
        told.say(me.term)
        if len(told.news) == 1:
            client.session.destroy(me.session)
            assert me.lost.wait(PATIENCE)
            assert me.reason is LossReason.SESSION_GONE
            me.check()

    election = LeaderElection(make_client(observer=told), key, retry_wait=QUICK)
    election.run(work, until=lambda: len(told.news) == 2)
    assert told.news == sorted(set(told.news))
    assert told.seen(Failed) == []


def test_an_error_of_work_that_was_lost_is_still_reported(
    make_client: MakeClient, client: Client, key: str
) -> None:
    told = Told()

    def work(me: Leadership) -> None:
        client.session.destroy(me.session)
        assert me.lost.wait(PATIENCE)
        raise ValueError("while cleaning up")

    LeaderElection(make_client(observer=told), key, retry_wait=QUICK).run(work, until=lambda: True)
    until(lambda: told.seen(Failed), "the report")
    (failed,) = told.seen(Failed)
    assert isinstance(failed, Failed)
    assert "ValueError: while cleaning up" in failed.error


def test_news_of_another_leadership_is_an_error_of_the_work(make_client: MakeClient, key: str) -> None:
    told = Told()

    def work(me: Leadership) -> None:
        raise LeadershipLost("another", key=key, fence=me.term - 1, reason=LossReason.EXPIRED)

    LeaderElection(make_client(observer=told), key, retry_wait=QUICK).run(work, until=lambda: True)
    until(lambda: told.seen(Failed), "the report")


def test_stopping_from_elsewhere_ends_run(stand: Stand) -> None:
    election = stand()
    began = threading.Event()

    def work(me: Leadership) -> None:
        began.set()
        assert me.lost.wait(PATIENCE)

    running = threading.Thread(target=election.run, args=(work,))
    running.start()
    assert began.wait(PATIENCE)
    election.stop()
    running.join(PATIENCE)
    assert not running.is_alive()


def test_run_in_a_running_candidacy_leaves_it_running(stand: Stand) -> None:
    election = stand()
    election.run(lambda me: me, until=lambda: True)
    election.wait_for_leadership(timeout=PATIENCE)


def test_the_decorator_makes_a_function_run_as_leader(client: Client, key: str) -> None:
    told = Told()
    election = LeaderElection(client, key, retry_wait=QUICK)

    @election.leading
    def work(me: Leadership) -> None:
        """Work."""
        told.say(me.term)
        election.stop()

    assert work.__doc__ == "Work."
    work()
    assert len(told.news) == 1


def test_a_block_ends_with_the_news_of_a_loss(stand: Stand, client: Client) -> None:
    election = stand()
    terms = []

    def block() -> None:
        with election.wait_for_leadership(timeout=PATIENCE) as me:
            terms.append(me.term)
            client.session.destroy(me.session)
            assert me.lost.wait(PATIENCE)
            raise ValueError("unfinished")

    with pytest.raises(LeadershipLost) as caught:
        block()
    assert isinstance(caught.value.__cause__, ValueError)
    assert caught.value.fence == terms[0]


def test_resigning_in_the_work_lets_the_next_one_lead(stand: Stand) -> None:
    election = stand()
    election.wait_for_leadership(timeout=PATIENCE)
    other = stand()
    queued(election, 1)
    election.run(lambda me: election.resign(pause=60), until=lambda: True)
    other.wait_for_leadership(timeout=PATIENCE)
