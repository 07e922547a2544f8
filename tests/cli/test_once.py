"""``once``: two hosts' crontabs run one command a period, and each exit code."""

from __future__ import annotations

import json
import signal
import time
from typing import TYPE_CHECKING

import pytest

from consul_coord import Client, Lock, Once, period_slot
from consul_coord.server import ReferenceServer, ServerConfig
from consul_coord.server.acl import AclConfig, Rule, Token
from tests.cli.processes import is_alive, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Start
    from tests.cli.processes import Cli

FAST = ("--ttl", "2", "--lock-delay", "2")


def logging_to(log: Path, *, takes: float = 0.0) -> tuple[str, ...]:
    """Return a command that notes the slot it was run for."""
    return ("sh", "-c", f'sleep {takes}; echo "$CONSUL_ONCE_SLOT $CONSUL_LOCK_FENCE" >>{log}')


@pytest.mark.slow
def test_two_crontabs_on_one_agent_run_each_period_once(
    start: Start, key: str, anywhere: str, tmp_path: Path
) -> None:
    log, period, periods = tmp_path / "log", 2, 4
    codes: list[int] = []
    for _ in range(periods):
        time.sleep(period - time.time() % period + 0.1)  # a crontab's own waiting
        begun = period_slot(period)
        hosts = [
            start("once", key, "--period", str(period), "-q", "--", *logging_to(log), address=anywhere)
            for _ in range(2)
        ]
        codes.extend(host.end() for host in hosts)
        assert log.read_text().split()[-2] >= begun
    assert codes == [0] * 2 * periods
    slots, fences = log.read_text().split()[::2], [int(each) for each in log.read_text().split()[1::2]]
    assert len(set(slots)) == len(slots) >= periods
    assert fences == sorted(set(fences))


def test_many_at_once_run_the_command_once(start: Start, key: str, anywhere: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    hosts = [
        start("once", key, "--slot", "1", "--", *logging_to(log, takes=0.2), address=anywhere)
        for _ in range(5)
    ]
    assert [host.end() for host in hosts] == [0] * 5
    assert len(log.read_text().split()) == 2


@pytest.mark.slow
def test_a_killed_host_is_taken_over_by_one_that_waits(
    start: Start, key: str, anywhere: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    first = start("once", key, "--slot", "1", *FAST, "--", "sh", "-c", "echo $$; sleep 60", address=anywhere)
    pid = int(first.stdout.wait_for(str.isdigit, "process id"))
    second = start("once", key, "--slot", "1", *FAST, "--json", "--", *logging_to(log), address=anywhere)
    second.event("waiting")
    first.send(signal.SIGKILL)
    assert first.end() == 137
    assert second.end() == 0
    assert not is_alive(pid)
    assert log.read_text().split()[0] == "1"


# -- exit codes


def test_ran_elsewhere_is_0_or_as_asked_and_says_by_whom(start: Start, key: str, client: Client) -> None:
    Once(client, key, value="host-7").run(lambda _: None, slot="5")
    for options, code in (((), 0), (("--ran-elsewhere-code", "3"), 3)):
        skipped = start("once", key, "--slot", "5", *options, "--", "echo", "running")
        assert skipped.end() == code
        assert any(f"not run: {key} ran for slot 5 by host-7 at 20" in line for line in skipped.stderr.all())
        assert skipped.stdout.all() == []
    assert start("once", key, "--slot", "4", "--ran-elsewhere-code", "3", "--", "true").end() == 3


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137), ("kill $$", 143)]
)
def test_the_commands_own_code_comes_through_and_is_recorded(
    start: Start, key: str, client: Client, script: str, code: int
) -> None:
    assert start("once", key, "--slot", "1", "--", "sh", "-c", script).end() == code
    pair = client.kv.get(f"{key}/.once").value
    assert pair is not None
    assert json.loads(pair.value)["outcome"] == ("failed" if code else "done")
    assert Lock(client, key).holder() is None


def test_a_failed_command_runs_again_in_its_period_unless_it_is_left(start: Start, key: str) -> None:
    def run(*options: str) -> Cli:
        return start("once", key, "--slot", "1", *options, "--", "sh", "-c", "echo ran; exit 3")

    assert run().end() == 3
    assert run().end() == 3
    left = run("--leave-failed", "--ran-elsewhere-code", "9")
    assert left.end() == 9
    assert any("failed in slot 1" in line for line in left.stderr.all())


def test_a_command_that_can_not_start_leaves_its_slot(start: Start, key: str, client: Client) -> None:
    assert start("once", key, "--slot", "1", "--", "no-such-command").end() == 127
    assert start("once", key, "--slot", "1", "--", "true").end() == 0
    last = Once(client, key).last()
    assert last is not None
    assert not last.failed


def test_a_run_elsewhere_that_does_not_end_is_75_or_as_asked(start: Start, key: str, client: Client) -> None:
    with Lock(client, key).hold() as hold:
        for options, code in (((), 75), (("--not-acquired-code", "9"), 9)):
            refused = start("once", key, "--slot", "1", "--timeout", "0", *options, "--", "true")
            assert refused.end() == code
            assert any(hold.session in line for line in refused.stderr.all())


def test_a_lost_lock_is_76_and_nothing_is_recorded(start: Start, key: str, client: Client) -> None:
    running = start("once", key, "--slot", "1", "--json", "--", "sleep", "60")
    client.session.destroy(running.event("acquired")["session"])
    assert running.end() == 76
    assert client.kv.get(f"{key}/.once").value is None


def test_a_command_that_was_stopped_is_76_and_nothing_is_recorded(
    start: Start, key: str, client: Client
) -> None:
    """It has not ended by itself, and its hold lasts."""
    running = start("once", key, "--slot", "1", "--max-hold", "1", "--", "sleep", "60")
    assert running.end() == 76
    assert client.kv.get(f"{key}/.once").value is None


def test_a_signal_while_waiting_is_128_and_its_number(start: Start, key: str, client: Client) -> None:
    with Lock(client, key).hold():
        waiting = start("once", key, "--slot", "1", "--json", "--", "true")
        waiting.event("waiting")
        waiting.send(signal.SIGTERM)
        assert waiting.end() == 143
    assert client.kv.get(f"{key}/.once").value is None


def test_a_key_used_for_something_else_is_65(start: Start, key: str, client: Client) -> None:
    client.kv.put(f"{key}/.once", b"somebody's")
    assert start("once", key, "--slot", "1", "--", "true").end() == 65


def test_unreachable_is_69(start: Start, key: str) -> None:
    options = ("--slot", "1", "--timeout", "0.3", "--not-acquired-code", "0")
    assert start("once", key, *options, "--", "true", address="127.0.0.1:1").end() == 69


def test_unreachable_without_a_timeout_waits_and_says_so(key: str, start: Start, tmp_path: Path) -> None:
    socket = tmp_path / "consul.sock"
    waiting = start("once", key, "--slot", "1", "--", "true", address=f"unix://{socket}")
    waiting.stderr.wait_for(lambda line: "could not be reached" in line, "word of it")
    with ReferenceServer(uds=socket):
        assert waiting.end() == 0


def test_a_missing_permission_is_77(start: Start, key: str) -> None:
    with ReferenceServer(config=ServerConfig(acl=AclConfig())) as server:
        assert start("once", key, "--slot", "1", "--", "true", address=server.address).end() == 77


@pytest.mark.parametrize(("script", "code"), [("exit 0", 77), ("exit 3", 3)])
def test_a_success_that_can_not_be_recorded_is_none_and_a_failure_is_the_commands_own(
    start: Start, key: str, tmp_path: Path, script: str, code: int
) -> None:
    token = tmp_path / "token"
    token.write_text("limited", encoding="utf-8")
    rules = (Rule("session", "", "write", prefix=True), Rule("key", key, "write", prefix=True))
    acl = AclConfig(tokens={"limited": Token((*rules, Rule("key", f"{key}/.once", "read")))})
    with ReferenceServer(config=ServerConfig(acl=acl)) as server:
        options = ("--slot", "1", "--token-file", str(token))
        running = start("once", key, *options, "--", "sh", "-c", script, address=server.address)
        assert running.end() == code


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--slot", "1", "--period", "1h"),
        ("--period", "1.5"),
        ("--slot", ""),
        ("--period", "1h", "--fair"),
    ],
)
def test_wrong_usage_is_2(start: Start, key: str, options: tuple[str, ...]) -> None:
    assert start("once", key, *options, "--", "true").end() == 2


def test_a_wrong_address_is_78(start: Start, key: str) -> None:
    assert start("once", key, "--slot", "1", "--", "true", address="ftp://nowhere").end() == 78


def test_a_slot_of_the_future_is_warned_of(start: Start, key: str, client: Client) -> None:
    Once(client, key, value="host-7").run(lambda _: None, slot="2999-01-01T00:00:00Z")
    skipped = start("once", key, "--period", "1h", "--", "true")
    assert skipped.end() == 0
    assert any("host-7 has already run its slot 2999" in line for line in skipped.stderr.all())


def test_others_see_who_runs_it(start: Start, key: str, client: Client) -> None:
    running = start("once", key, "--slot", "1", "--value", "the report", "--json", "--", "cat")
    running.event("started")
    holder = Lock(client, key).holder()
    assert holder is not None
    assert holder.value == b"the report"
    running.feed("")
    assert running.end() == 0
    until(lambda: Lock(client, key).holder() is None, "the lock is free")
