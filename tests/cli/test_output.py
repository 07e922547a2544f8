"""What people are told of the library's events."""

from __future__ import annotations

import pytest

from consul_coord import events
from consul_coord.cli.output import REPEAT_SPACING, RETRY_SPACING, Reporter

BEGAN = events.OutageBegan("no answer", 6.0, 9.0, ("jobs/a",))
ENDED = events.OutageEnded(9.25, 14.0, ("jobs/a",))


@pytest.mark.parametrize("quiet", [False, True])
def test_an_outage_is_told_once_and_so_is_its_end(quiet: bool, capsys: pytest.CaptureFixture[str]) -> None:
    reporter = Reporter(quiet=quiet)
    course = [
        events.Renewed("first", 15.0),
        events.Jeopardy("first", 9.0, "no answer"),
        BEGAN,
        events.Jeopardy("first", 8.0, "no answer", repeated=True),
        events.Jeopardy("second", 6.0, "no answer"),
        events.Renewed("first", 14.0, recovered=True),
        ENDED,
        events.Renewed("first", 15.0),
    ]
    for event in course:
        reporter.on_event(event)
    assert capsys.readouterr().err.splitlines() == [
        f"consul-coord: {BEGAN.describe()}",
        f"consul-coord: {ENDED.describe()}",
    ]


def test_what_others_wrote_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    Reporter().fail(1, "bad reply: \x1b[2J\nconsul-coord: all is well")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.isprintable()


def test_a_request_that_is_sent_again_for_the_same_reason_is_told_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("consul_coord.cli.output.time.monotonic", lambda: now[0])
    reporter = Reporter()
    for error in ["refused"] * 5 + ["reset"] * 2:
        reporter.on_event(events.Retried("GET", "/v1/kv/k", f"ConnectFailed: GET /v1/kv/k: {error}"))
        now[0] += RETRY_SPACING
    assert capsys.readouterr().err.splitlines() == [
        "consul-coord: retrying GET /v1/kv/k: ConnectFailed: refused",
        "consul-coord: retrying GET /v1/kv/k: ConnectFailed: reset",
    ]
    now[0] += REPEAT_SPACING
    reporter.on_event(events.Retried("GET", "/v1/kv/k", "ConnectFailed: GET /v1/kv/k: reset"))
    assert len(capsys.readouterr().err.splitlines()) == 1
