"""What people are told of the library's events."""

from __future__ import annotations

import pytest

from consul_coord import events
from consul_coord.cli.output import Reporter

FIRST, SECOND = "session-1", "session-2"


def failing(session: str, remaining: float) -> events.Jeopardy:
    return events.Jeopardy(session, remaining, "no answer")


@pytest.mark.parametrize("quiet", [False, True])
def test_an_outage_is_told_once_for_each_session_and_so_is_its_end(
    quiet: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    reporter = Reporter(quiet=quiet)
    course = [
        events.Renewed(FIRST, 15.0),
        *(failing(FIRST, remaining) for remaining in (9.0, 8.0, 7.0)),
        failing(SECOND, 6.0),
        events.Renewed(FIRST, 14.0, recovered=True),
        events.Renewed(FIRST, 15.0),
        failing(FIRST, 5.0),
        events.Renewed(FIRST, 0.0),  # the answer came when the session had been given up
    ]
    for event in course:
        reporter.on_event(event)
    prefix = "consul-coord: "
    lines = capsys.readouterr().err.splitlines()
    assert [line.removeprefix(prefix).partition(" s unless")[0] for line in lines] == [
        f"no contact with Consul for 0.0 s (no answer): session {FIRST} stays valid for another 9.0",
        f"no contact with Consul for 0.0 s (no answer): session {SECOND} stays valid for another 6.0",
        f"contact with Consul is back: session {FIRST} stays valid for another 14.0 s",
        f"no contact with Consul for 0.0 s (no answer): session {FIRST} stays valid for another 5.0",
    ]


def test_what_others_wrote_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    Reporter().fail(1, "bad reply: \x1b[2J\nconsul-coord: all is well")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.isprintable()
