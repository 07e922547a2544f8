"""How a command under a hold ends, and how the wait for its hold does: each way, without processes."""

from __future__ import annotations

import json
import signal
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord import AcquireCancelled, ReleaseOutcome
from consul_coord.cli import holding
from consul_coord.cli.acquire import Interrupted, acquire
from consul_coord.cli.child import CannotStart
from consul_coord.cli.inbox import Inbox, Signalled
from consul_coord.cli.output import Reporter
from consul_coord.cli.supervise import Ended

if TYPE_CHECKING:
    from consul_coord import Hold

STOPPED = "the hold ended before the command, which was stopped"
LOST = "the hold was lost while the command ran"
UNKNOWN = "no answer to the release: it may stay taken until it expires"
RELEASED, GONE, UNANSWERED = (
    ReleaseOutcome.RELEASED,
    ReleaseOutcome.ALREADY_LOST,
    ReleaseOutcome.UNKNOWN,
)
ENDS: dict[tuple[bool, ReleaseOutcome], tuple[int, list[tuple[str, str]], bool]] = {
    (False, RELEASED): (3, [("ended", "the command ended with 3")], True),
    (False, GONE): (76, [("error", LOST)], True),
    (False, UNANSWERED): (3, [("unreleased", UNKNOWN), ("ended", "the command ended with 3")], True),
    (True, RELEASED): (76, [("error", STOPPED)], False),
    (True, GONE): (76, [("error", STOPPED)], False),
    (True, UNANSWERED): (76, [("error", STOPPED)], False),
}
"""Whether it was stopped, and what came of the release; its code, what is told, and if it is recorded."""


def run(command: Ended | CannotStart, outcome: ReleaseOutcome) -> Any:
    """Run a command under a hold; returns the code, and what was done in order."""
    done: list[str] = []

    def run_under(_: Hold) -> Ended:
        if isinstance(command, CannotStart):
            raise command
        return command

    def release() -> ReleaseOutcome:
        done.append("released")
        return outcome

    def ended(_: Hold, code: int) -> None:
        done.append(f"recorded {code}")

    client: Any = SimpleNamespace(close=lambda *, timeout: done.append(f"closed within {timeout}"))
    hold: Any = SimpleNamespace(release=release)
    code = holding._run(run_under, hold, client=client, reporter=Reporter(as_json=True), when_ended=ended)
    return code, done


@pytest.mark.parametrize(("stopped", "outcome"), ENDS)
def test_each_end_has_its_code_and_is_told(
    capsys: pytest.CaptureFixture[str], stopped: bool, outcome: ReleaseOutcome
) -> None:
    expected, told, recorded = ENDS[stopped, outcome]
    code, done = run(Ended(3, stopped=stopped), outcome)
    assert code == expected
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(event["event"], event["message"]) for event in events] == told
    closed = [f"closed within {holding.SHORT}"] * (outcome is UNANSWERED)
    assert done == [*["recorded 3"] * recorded, "released", *closed], "a close waits for an answer once more"


def test_a_command_that_can_not_start_gives_the_hold_back(capsys: pytest.CaptureFixture[str]) -> None:
    code, done = run(CannotStart("it", FileNotFoundError(2, "No such file")), RELEASED)
    assert (code, done) == (127, ["released"])
    assert "it: No such file" in capsys.readouterr().err


def test_the_first_of_several_signals_is_that_which_has_ended_the_wait() -> None:
    over = threading.Event()

    class Wanted:
        def acquire(self, *, timeout: float | None, max_hold: float | None) -> Hold:
            assert over.wait(60)
            raise AcquireCancelled("cancelled", key="k")

        def cancel(self) -> None:
            over.set()

    inbox = Inbox()
    for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
        inbox.put(Signalled(number))
    with pytest.raises(Interrupted) as ended:
        acquire(Wanted(), timeout=None, max_hold=None, inbox=inbox)
    assert ended.value.number == signal.SIGTERM
    assert str(ended.value) == "ended by SIGTERM while waiting"
