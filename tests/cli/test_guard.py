"""The guard: a command ends before its lease, also when consul-coord is stopped, stalled or killed."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from consul_coord import Client, Lock, SessionSpec, SystemClock
from consul_coord.cli.child import CannotStart, Child
from consul_coord.cli.guard import Guard, Limits
from consul_coord.cli.inbox import Inbox, Signalled
from consul_coord.cli.output import Reporter
from consul_coord.cli.supervise import Observer, grace_of, supervise
from consul_coord.cli.terminal import Terminal
from tests.cli.processes import PATIENCE, PROGRAM, environ, is_alive, until

if TYPE_CHECKING:
    from consul_coord.events import Event
    from tests.cli.conftest import Start
    from tests.cli.processes import Cli

TTL = 3.0
LEASE = ("--ttl", str(TTL), "--lock-delay", str(TTL))
STUBBORN = "trap '' TERM; echo $$; while :; do sleep 0.01; done"
VERBS = {
    "lock": ("lock", *LEASE),
    "semaphore": ("semaphore", "--limit", "1", "--ttl", str(TTL)),
    "elect": ("elect", *LEASE),
}


def begin(start: Start, verb: str, key: str, script: str) -> Cli:
    name, *options = VERBS[verb]
    return start(name, key, *options, "--json", "--", "sh", "-c", script)


def children_of(pid: int) -> set[int]:
    """Return the processes that another has started."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.add(int(stat.parent.name))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_a_stopped_holder_leaves_no_command_beside_the_next_holder(start: Start, key: str, verb: str) -> None:
    first = begin(start, verb, key, STUBBORN)
    pid = int(first.stdout.wait_for(str.isdigit, "process id"))
    second = begin(start, verb, key, "true")
    first.send(signal.SIGSTOP)
    stopped = time.monotonic()
    until(lambda: not is_alive(pid), "the command is dead")
    assert time.monotonic() - stopped < TTL
    assert not any('"started"' in line for line in second.stderr.seen)
    assert second.end() == 0
    first.send(signal.SIGCONT)
    if verb == "elect":
        first.event("lost_leadership")
        first.event("started")
        first.send(signal.SIGKILL)
    else:
        assert first.end() == 76


@pytest.mark.slow
def test_the_guard_asks_before_it_kills(start: Start, key: str) -> None:
    script = "trap 'echo asked; exit 0' TERM; echo ready; while :; do sleep 0.01; done"
    command = begin(start, "lock", key, script)
    command.stdout.wait_for("ready".__eq__, "ready")
    command.send(signal.SIGSTOP)
    command.stdout.wait_for("asked".__eq__, "word of TERM")
    command.send(signal.SIGCONT)
    assert command.end() == 76


@pytest.mark.slow
def test_a_short_stop_costs_nothing_and_renewals_move_the_deadline(start: Start, key: str) -> None:
    command = begin(start, "lock", key, "echo ready; read -r line; echo $line")
    command.stdout.wait_for("ready".__eq__, "ready")
    command.send(signal.SIGSTOP)
    time.sleep(TTL / 10)  # what is tested is that much less than the lease passes
    command.send(signal.SIGCONT)
    for _ in range(4):  # more than one lease
        command.event("renewed")
    command.feed("still here\n")
    assert command.end() == 0
    assert command.stdout.all() == ["ready", "still here"]


def test_a_hold_that_is_over_starts_no_command(key: str, client: Client, tmp_path: Path) -> None:
    hold = Lock(client, key).acquire(timeout=PATIENCE)
    client.session.destroy(hold.session)
    assert hold.lost.wait(PATIENCE)
    with Guard() as guard:
        ended = supervise(
            ["touch", str(tmp_path / "started")],
            hold,
            client=client,
            grace=grace_of(SessionSpec(ttl=TTL), max_hold=None),
            guard=guard,
            inbox=Inbox(),
            reporter=Reporter(quiet=True),
        )
    assert ended.stopped
    assert not (tmp_path / "started").exists()


class Noting(Guard):
    """A guard that notes when it is to step in."""

    def __init__(self) -> None:
        super().__init__()
        self.limits: list[Limits] = []

    def watch(self, group: int, limits: Limits) -> bool:
        if group:
            self.limits.append(limits)
        return super().watch(group, limits)


def test_each_renewal_moves_the_time_at_which_the_guard_steps_in(key: str, address: str) -> None:
    reporter, inbox, spec = Reporter(quiet=True), Inbox(), SessionSpec(ttl=60.0, lock_delay=60.0)
    observer = Observer(reporter, inbox)
    with Client(address=address, session=spec, observer=observer) as client, Noting() as guard:
        hold = Lock(client, key).acquire(timeout=PATIENCE)

        def renew() -> None:
            until(lambda: bool(guard.limits), "the command is watched")
            for heard in (2, 3):
                hold.ensure(57.0)  # as long as the lease lasts: it is renewed
                until(partial(lambda times: len(set(guard.limits)) >= times, heard), "the guard hears of it")
            inbox.put(Signalled(signal.SIGTERM))

        renewing = threading.Thread(target=renew)
        renewing.start()
        supervise(
            ["sleep", "60"],
            hold,
            client=client,
            grace=grace_of(spec, max_hold=None),
            guard=guard,
            inbox=inbox,
            reporter=reporter,
        )
        renewing.join()
        assert guard.limits == sorted(guard.limits), "no time is earlier than the one before"
        assert guard.limits[-1].kill_at < hold.deadline()


def test_between_fork_and_exec_nobody_is_told_of_what_was_inherited(
    key: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, link = os.pipe()

    class Teller:
        """It tells also when it runs in a child."""

        def on_event(self, event: Event) -> None:
            os.write(link, f"{type(event).__name__}\n".encode())

    with Client(address=address, observer=Teller()) as client, Guard() as guard:
        hold = Lock(client, key).acquire(timeout=PATIENCE)
        monkeypatch.setattr(guard, "announcement", lambda _: lambda: time.sleep(0.5))
        far = Limits(math.inf, math.inf)
        child = Child(["true"], environ={}, guard=guard, limits=far, inbox=Inbox(), terminal=Terminal())
        child.finish()
        assert hold.is_held
        hold.release()
    os.close(link)
    with os.fdopen(told) as lines:
        assert "Lost\n" not in lines.readlines()


def test_the_guard_outlives_signals_that_end_services_and_nothing_outlives_consul_coord(
    start: Start, key: str
) -> None:
    command = begin(start, "lock", key, STUBBORN)
    pid = int(command.stdout.wait_for(str.isdigit, "process id"))
    (guard,) = children_of(command.pid) - {pid}
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        os.kill(guard, number)
    command.send(signal.SIGKILL)
    until(lambda: not is_alive(pid), "the command is dead")
    until(lambda: not is_alive(guard), "the guard has ended")


class Stopped(Guard):
    """The guard of a consul-coord that does nothing more once it has started its command."""

    def watch(self, group: int, limits: Limits) -> bool:
        return super().watch(group, limits) if group == 0 else True


def test_the_guard_knows_the_command_from_its_first_instruction_on() -> None:
    now = SystemClock().now()
    with Stopped() as guard:
        child = Child(
            ["sleep", "60"],
            environ=os.environ,
            guard=guard,
            limits=Limits(now, now),
            inbox=Inbox(),
            terminal=Terminal(),
        )
        until(lambda: not is_alive(child.group), "the command is dead")
        _, stepped_in = child.finish()
    assert stepped_in


def test_a_command_that_can_not_be_started_leaves_the_guard_nothing_to_watch() -> None:
    now = SystemClock().now()
    with Guard() as guard:
        with pytest.raises(CannotStart, match="No such file"):
            Child(
                ["/no/such/command"],
                environ=os.environ,
                guard=guard,
                limits=Limits(now + PATIENCE, now + PATIENCE),
                inbox=Inbox(),
                terminal=Terminal(),
            )
        assert guard.dismiss() is False


def test_a_command_goes_on_without_its_guard_and_says_so(start: Start, key: str, client: Client) -> None:
    with Lock(client, key).hold():
        command = begin(start, "lock", key, "exit 3")
        command.event("waiting")
        (guard,) = children_of(command.pid)
        os.kill(guard, signal.SIGKILL)
        until(lambda: not is_alive(guard), "the guard is dead")
    command.event("unguarded")
    assert command.end() == 3


def test_the_guard_keeps_no_file_of_its_parents_open(start: Start, key: str) -> None:
    command = begin(start, "lock", key, STUBBORN)
    pid = int(command.stdout.wait_for(str.isdigit, "process id"))
    (guard,) = children_of(command.pid) - {pid}
    files = {file.readlink() for file in Path(f"/proc/{guard}/fd").iterdir()}
    assert {re.sub(r"\d+", "N", str(file)) for file in files} == {"/dev/null", "socket:[N]"}


def test_the_guard_works_where_the_standard_files_were_closed(address: str, key: str, tmp_path: Path) -> None:
    told = tmp_path / "pid"
    command = f"exec {' '.join(PROGRAM)} lock {key} -- sh -c 'echo $$ >{told}; exec sleep 60' <&- >&- 2>&-"
    env = environ(CONSUL_HTTP_ADDR=address)
    with subprocess.Popen(["sh", "-c", command], env=env) as process:
        until(lambda: told.exists() and told.read_text().endswith("\n"), "the command runs")
        process.kill()
    until(lambda: not is_alive(int(told.read_text())), "the command is dead")


def test_a_guard_that_does_not_answer_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("consul_coord.cli.guard.PATIENCE", 0.2)
    before = children_of(os.getpid())
    with Guard() as guard:
        (pid,) = children_of(os.getpid()) - before
        os.kill(pid, signal.SIGSTOP)
        assert guard.dismiss() is False
        assert not is_alive(pid)
        assert guard.watch(1, Limits(0, 0)) is False


def test_a_record_that_comes_with_the_deadline_counts() -> None:
    now = SystemClock().now()
    command = os.posix_spawn("/bin/sh", ["sh", "-c", "exec sleep 60"], dict(os.environ), setpgroup=0)
    try:
        with Guard() as guard:
            guard.watch(command, Limits(now + PATIENCE, now + PATIENCE))
            guard.watch(command, Limits(now + 2 * PATIENCE, now + 2 * PATIENCE))
            assert guard.dismiss() is False
            guard.watch(command, Limits(now, now))
            os.waitid(os.P_PID, command, os.WEXITED | os.WNOWAIT)
            assert guard.dismiss() is True
            assert guard.dismiss() is False
    finally:
        os.kill(command, signal.SIGKILL)
        _, status = os.waitpid(command, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
