"""``lock``: who runs when, what the command is told, and what its end becomes."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from consul_coord import LOCK_FLAGS, Client, Lock, SessionSpec
from consul_coord.server import ReferenceServer, ServerConfig
from consul_coord.server.acl import AclConfig, Token
from tests.cli.processes import PATIENCE, PROGRAM, Cli, environ, is_alive, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Start

FAST = ("--ttl", "4", "--lock-delay", "1")
"""A dead holder is succeeded within nine seconds, and a busy machine keeps none from renewing."""


def test_the_command_is_told_of_its_hold_and_has_stdin_and_stdout(
    start: Start, key: str, anywhere: str
) -> None:
    script = "env | grep ^CONSUL_LOCK_ | sort; cat"
    command = start("lock", key, "--json", "--", "sh", "-c", script, address=anywhere)
    acquired = command.event("acquired")
    command.feed("through stdin\n")
    assert command.end() == 0
    assert command.stdout.all() == [
        f"CONSUL_LOCK_FENCE={acquired['fence']}",
        "CONSUL_LOCK_HELD=true",
        f"CONSUL_LOCK_KEY={key}",
        f"CONSUL_LOCK_SESSION={acquired['session']}",
        "through stdin",
    ]
    with Client(address=anywhere) as client:
        assert Lock(client, key).holder() is None
        assert client.session.info(acquired["session"]).value is None


def test_a_command_under_two_holds_is_told_of_the_inner_one(key: str, address: str) -> None:
    env = environ(CONSUL_HTTP_ADDR=address, CONSUL_LOCK_KEY="the outer one")
    with Cli("lock", key, "--", "sh", "-c", "echo $CONSUL_LOCK_KEY", env=env) as command:
        assert command.end() == 0
        assert command.stdout.all() == [key]


def test_the_key_shows_who_holds_it(start: Start, key: str, client: Client) -> None:
    command = start("lock", key, "--value", "the nightly job", "--json", "--", "cat")
    command.event("started")
    holder = Lock(client, key).holder()
    assert holder is not None
    assert holder.value == b"the nightly job"
    command.feed("")
    assert command.end() == 0


def test_commands_under_one_lock_never_overlap(start: Start, key: str, anywhere: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = f"echo in >>{log}; sleep 0.05; echo out >>{log}"
    commands = [start("lock", key, "-q", "--", "sh", "-c", script, address=anywhere) for _ in range(4)]
    assert [command.end() for command in commands] == [0] * 4
    assert log.read_text().split() == ["in", "out"] * 4


@pytest.mark.slow
def test_a_killed_holder_is_succeeded_and_its_command_is_killed(
    start: Start, key: str, anywhere: str
) -> None:
    first = start("lock", key, *FAST, "--json", "--", "sh", "-c", "echo $$; sleep 60", address=anywhere)
    pid = int(first.stdout.wait_for(str.isdigit, "process id"))
    second = start("lock", key, *FAST, "--json", "--", "true", address=anywhere)
    with Client(address=anywhere) as client:
        until(lambda: len(client.session.list().value) > 1, "both have a session")
    first.send(signal.SIGKILL)
    assert first.end() == 137
    until(lambda: not is_alive(pid), "the command of the killed one ended")
    fence = second.event("acquired")["fence"]
    assert fence > first.event("acquired")["fence"]
    assert second.end() == 0


def test_waiting_is_told_while_it_lasts(start: Start, key: str, client: Client) -> None:
    with Lock(client, key).hold() as hold:
        waiting = start("lock", key, "--json", "--", "true")
        event = waiting.event("waiting")
        assert event["blocker"]["kind"] == "held"
        assert event["blocker"]["session"] == hold.session
    assert waiting.end() == 0


# -- exit codes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 3", 3), ("exit 255", 255), ("kill -9 $$", 137), ("kill $$", 143)],
)
def test_the_commands_own_code_comes_through(start: Start, key: str, script: str, code: int) -> None:
    assert start("lock", key, "--", "sh", "-c", script).end() == code


@pytest.mark.parametrize(
    ("command", "code"),
    [("no-such-command", 127), ("/no/such/command", 127), ("/etc/passwd", 126), ("/", 126)],
)
def test_a_command_that_cannot_start_releases_the_lock(
    start: Start, key: str, client: Client, command: str, code: int
) -> None:
    failed = start("lock", key, "--", command)
    assert failed.end() == code
    assert any(command in line for line in failed.stderr.all())
    assert Lock(client, key).holder() is None


@pytest.mark.parametrize(
    "setting",
    ["signal.signal(signal.SIGCHLD, signal.SIG_IGN)", "os.close(2)", "os.close(0)"],
    ids=["children ignored", "no stderr", "no stdin"],
)
def test_whatever_it_is_started_with_it_runs_the_command(address: str, key: str, setting: str) -> None:
    script = f"import os, signal, sys; {setting}; os.execv(sys.argv[1], sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", script, *PROGRAM, "lock", key, "--", "sh", "-c", "echo ran; exit 7"],
        env=environ(CONSUL_HTTP_ADDR=address),
        stdout=subprocess.PIPE,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stdout) == (7, b"ran\n")


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ("--timeout 0", 75),
        ("--timeout 2", 75),
        ("--timeout 0 --not-acquired-code 9", 9),
        ("--timeout 0 --not-acquired-code 0", 0),
    ],
)
def test_not_acquired_is_75_or_as_asked(
    start: Start, key: str, client: Client, options: str, code: int
) -> None:
    with Lock(client, key).hold() as hold:
        refused = start("lock", key, *options.split(), "--", "echo", "running")
        assert refused.end() == code
        assert any(hold.session in line for line in refused.stderr.all())
        assert refused.stdout.all() == []


@pytest.mark.parametrize(("options", "code"), [([], 0), (["--fair"], 75)])
def test_only_a_fair_lock_lets_waiters_go_first(
    start: Start, key: str, client: Client, options: list[str], code: int
) -> None:
    waiter = client.session.create(SessionSpec())
    assert client.kv.acquire(f"{key}/.wait/{waiter}", waiter, flags=LOCK_FLAGS)
    assert start("lock", key, "--timeout", "0", *options, "--", "true").end() == code


def test_unreachable_is_69(start: Start, key: str) -> None:
    options = ("--timeout", "0.3", "--not-acquired-code", "0")
    assert start("lock", key, *options, "--", "true", address="127.0.0.1:1").end() == 69


@pytest.mark.parametrize("is_held", [True, False], ids=["held", "unreachable"])
def test_a_single_try_says_once_why_it_failed(start: Start, key: str, client: Client, is_held: bool) -> None:
    nobody = {} if is_held else {"address": "127.0.0.1:1"}
    with Lock(client, key).hold():
        refused = start("lock", key, "--timeout", "0", "--", "true", **nobody)
        assert refused.end() == (75 if is_held else 69)
    (told,) = refused.stderr.all()
    assert re.search(r"was not acquired (at once|within [0-9.]+ s): ", told)


def test_unreachable_without_a_timeout_waits_and_says_so(key: str, start: Start, tmp_path: Path) -> None:
    socket = tmp_path / "consul.sock"
    waiting = start("lock", key, "--", "true", address=f"unix://{socket}")
    waiting.stderr.wait_for(lambda line: "could not be reached" in line, "word of it")
    with ReferenceServer(uds=socket):
        assert waiting.end() == 0


def test_a_key_used_for_something_else_is_65(start: Start, key: str, client: Client) -> None:
    client.kv.put(key, b"somebody's setting")
    assert start("lock", key, "--", "true").end() == 65
    pair = client.kv.get(key).value
    assert pair is not None
    assert pair.value == b"somebody's setting"


def test_a_missing_permission_is_77_and_names_the_rule(start: Start, key: str) -> None:
    with ReferenceServer(config=ServerConfig(acl=AclConfig())) as server:
        denied = start("lock", key, "--", "true", address=server.address)
        assert denied.end() == 77
        assert any("session:write" in line for line in denied.stderr.all())


def test_the_token_of_a_file_is_used_and_never_shown(key: str, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("only-for-me\n", encoding="utf-8")
    acl = AclConfig(tokens={"only-for-me": Token(management=True)})
    with (
        ReferenceServer(config=ServerConfig(acl=acl)) as server,
        Cli(
            "lock", key, "--address", server.address, "--token-file", str(token), "--", "env", env=environ()
        ) as command,
    ):
        assert command.end() == 0
        assert not any("only-for-me" in line for line in command.stdout.all() + command.stderr.all())


def test_a_ttl_that_the_server_refuses_is_78(start: Start, key: str) -> None:
    with ReferenceServer() as server:
        refused = start("lock", key, "--ttl", "1", "--", "true", address=server.address)
        assert refused.end() == 78
        assert any("session_ttl_min" in line for line in refused.stderr.all())


# -- signals ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["INT", "TERM", "HUP", "QUIT", "USR1", "USR2"])
def test_signals_reach_the_command(start: Start, key: str, name: str) -> None:
    script = f"trap 'echo got {name}; exit 7' {name}; echo ready; while :; do sleep 0.01; done"
    command = start("lock", key, "--", "sh", "-c", script)
    command.stdout.wait_for("ready".__eq__, "ready")
    command.send(signal.Signals[f"SIG{name}"])
    assert command.end() == 7
    assert command.stdout.all() == ["ready", f"got {name}"]


def test_signals_reach_what_the_command_started(start: Start, key: str) -> None:
    inner = "trap 'echo inner; exit' TERM; echo ready; while :; do sleep 0.01; done"
    script = 'trap "" TERM; (trap - TERM; exec sh -c "$1"); echo outer'
    command = start("lock", key, "--", "sh", "-c", script, "sh", inner)
    command.stdout.wait_for("ready".__eq__, "ready")
    command.send(signal.SIGTERM)
    assert command.end() == 0
    assert command.stdout.all() == ["ready", "inner", "outer"]


def test_an_ignored_hangup_stays_ignored(key: str, address: str) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        command = Cli("lock", key, "--", "sh", "-c", "echo ready; cat", env=environ(CONSUL_HTTP_ADDR=address))
    finally:
        signal.signal(signal.SIGHUP, before)
    with command:
        command.stdout.wait_for("ready".__eq__, "ready")
        command.send(signal.SIGHUP)
        command.feed("still here\n")
        assert command.end() == 0
        assert command.stdout.all() == ["ready", "still here"]


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGQUIT, 131)],
)
def test_a_signal_while_waiting_ends_the_wait(
    start: Start, key: str, client: Client, number: signal.Signals, code: int
) -> None:
    with Lock(client, key).hold():
        sessions = len(client.session.list().value)
        waiting = start("lock", key, "--", "echo", "running")
        until(lambda: len(client.session.list().value) > sessions, "it has a session")
        waiting.send(number)
        assert waiting.end() == code
        assert waiting.stdout.all() == []
        assert len(client.session.list().value) == sessions
    assert client.kv.keys(key).value == (key,)


def test_a_signal_while_the_agent_is_unreachable_ends_the_wait(start: Start, key: str) -> None:
    waiting = start("lock", key, "--", "true", address="127.0.0.1:1")
    waiting.stderr.wait_for(lambda line: "could not be reached" in line, "word of it")
    waiting.send(signal.SIGINT)
    assert waiting.end() == 130


def test_what_the_command_leaves_running_is_killed(start: Start, key: str) -> None:
    command = start("lock", key, "--", "sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!")
    assert command.end() == 0
    left = int(command.stdout.all()[0])
    until(lambda: not is_alive(left), "the process left behind ended")


# -- loss ---------------------------------------------------------------------------------------------------


def test_a_destroyed_session_stops_the_command_with_term_first(start: Start, key: str, anywhere: str) -> None:
    script = "trap 'echo cleaning up; exit 0' TERM; echo ready; while :; do sleep 0.01; done"
    command = start("lock", key, "--json", "--", "sh", "-c", script, address=anywhere)
    session = command.event("acquired")["session"]
    command.stdout.wait_for("ready".__eq__, "ready")
    with Client(address=anywhere) as client:
        client.session.destroy(session)
    assert command.end() == 76
    assert command.stdout.all() == ["ready", "cleaning up"]
    told = command.events()
    assert [event["reason"] for event in told if event["event"] == "lost"] == ["session_gone"]


def test_a_command_that_ignores_term_is_killed(start: Start, key: str, client: Client) -> None:
    script = "trap '' TERM; echo $$; while :; do sleep 0.01; done"
    command = start("lock", key, "--json", *FAST, "--", "sh", "-c", script)
    pid = int(command.stdout.wait_for(str.isdigit, "process id"))
    client.session.destroy(command.event("acquired")["session"])
    assert command.end() == 76
    assert not is_alive(pid)


def test_a_deleted_key_stops_the_command(start: Start, key: str, client: Client) -> None:
    command = start("lock", key, "--", "sh", "-c", "echo ready; exec sleep 60")
    command.stdout.wait_for("ready".__eq__, "ready")
    client.kv.delete(key)
    assert command.end() == 76


@pytest.mark.slow
def test_the_command_is_dead_before_the_lease_ends_when_nobody_answers(
    start: Start, key: str, tmp_path: Path
) -> None:
    stamp = tmp_path / "stamp"
    script = f"trap 'echo asked' TERM; echo ready; while :; do date >{stamp}; done"
    place = tmp_path / "consul.sock"
    with ReferenceServer(uds=place, config=ServerConfig(session_ttl_min=1)):
        command = start(
            "lock", key, "--ttl", "4", "--json", "--", "sh", "-c", script, address=f"unix://{place}"
        )
        command.stdout.wait_for("ready".__eq__, "ready")
    assert command.end() == 76
    assert command.stdout.all() == ["ready", "asked"]
    by_name = {event["event"]: event for event in command.events()}
    assert "jeopardy" in by_name
    stopping = by_name["stopping"]
    assert stamp.stat().st_mtime < stopping["time"] + stopping["remaining"]


def test_a_session_lost_in_the_commands_last_moment_is_76(start: Start, key: str) -> None:
    destroy = (
        "import os, urllib.request as u; "
        "u.urlopen(u.Request(os.environ['CONSUL_HTTP_ADDR'] + '/v1/session/destroy/' "
        "+ os.environ['CONSUL_LOCK_SESSION'], method='PUT')); os._exit(0)"
    )
    assert start("lock", key, "--", sys.executable, "-c", destroy).end() == 76


def test_a_lost_lock_is_not_taken_before_its_command_is_dead(
    start: Start, key: str, client: Client, address: str
) -> None:
    script = "trap '' TERM; echo $$; while :; do sleep 0.01; done"
    command = start("lock", key, "--json", "--ttl", "4", "--lock-delay", "2", "--", "sh", "-c", script)
    pid = int(command.stdout.wait_for(str.isdigit, "process id"))
    client.session.destroy(command.event("acquired")["session"])
    with (
        Client(address=address, session=SessionSpec(ttl=4.0)) as other,
        Lock(other, key).hold(timeout=PATIENCE),
    ):
        assert not is_alive(pid)
    assert command.end() == 76


@pytest.mark.slow
@pytest.mark.parametrize(
    "verb", [("lock", "k"), ("semaphore", "k", "--limit", "2")], ids=["lock", "semaphore"]
)
def test_the_time_to_wait_covers_the_creation_of_the_session(start: Start, verb: tuple[str, ...]) -> None:
    """It is made by the waiting thread itself, whose client would give it 10 s."""
    with ReferenceServer(config=ServerConfig(version="1.22.0", leaderless_hold=60.0)) as server:
        server.lose_leader()
        command = start(*verb, "--timeout", "0.5", "--json", "--", "true", address=server.address)
        told = command.event("error")
        server.elect_leader()
        assert re.search(r"within 0\.\d s: Consul could not be reached", told["message"])
        assert "consul-coord doctor" in told["message"]
        assert command.end() == 69
