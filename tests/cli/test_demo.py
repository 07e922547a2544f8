"""``demo``: it runs with and without a Consul, checks itself, and leaves nothing."""

from __future__ import annotations

import os
import re
import signal

import pytest

from consul_coord import Client
from consul_coord.cli import main
from consul_coord.cli.demo.verdict import Held, faults, read_log
from tests.cli.processes import Cli, environ, is_alive, until

STEP = re.compile(r" *(?P<at>\d+\.\d\d) s  (?P<name>worker-\d)  (?P<what>\w+) *(?P<detail>.*)")


def steps(lines: list[str]) -> list[re.Match[str]]:
    return [found for line in lines if (found := STEP.match(line))]


def pids(lines: list[str]) -> set[int]:
    return {int(step["detail"].removeprefix("pid ")) for step in steps(lines) if step["what"] == "started"}


def check(lines: list[str]) -> None:
    """Fail unless these lines show four holds, a kill and a takeover."""
    told = steps(lines)
    fences = [int(step["detail"].removeprefix("fence ")) for step in told if step["what"] == "acquired"]
    assert len(fences) == 4
    assert fences == sorted(set(fences))
    killed = [step for step in told if step["what"] == "killed"]
    assert len(killed) == 1
    holders = [step["name"] for step in told if step["what"] == "acquired"]
    assert killed[0]["name"] == holders[1]
    course = [step["what"] for step in told if step["what"] in {"acquired", "releases", "killed"}]
    assert course == ["acquired", "releases", "acquired", "killed", *("acquired", "releases") * 2]
    assert any("All is well: 4 holds, none overlapped another" in line for line in lines)
    assert "consul-coord lock" in lines[-1]
    assert max(map(len, lines)) <= 80
    until(lambda: not any(map(is_alive, pids(lines))), "workers ended")


@pytest.mark.slow
def test_it_runs_without_consul_whatever_the_settings_and_finds_all_well() -> None:
    settings = {"CONSUL_HTTP_ADDR": "127.0.0.1:1", "CONSUL_NAMESPACE": "team", "CONSUL_HTTP_SSL": "true"}
    with Cli("demo", "--ttl", "4", env=environ(**settings)) as demo:
        assert demo.end() == 0
        check(demo.stdout.all())
        assert demo.stderr.all() == []


@pytest.mark.slow
def test_it_runs_on_a_real_agent_and_leaves_no_key(agent_address: str) -> None:
    with Cli("demo", "--real", agent_address, "--ttl", "4", env=environ()) as demo:
        assert demo.end() == 0
        check(demo.stdout.all())
    with Client(address=agent_address) as client:
        assert client.kv.keys("demo/").value == ()


@pytest.mark.slow
def test_no_agent_is_69(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--real", "127.0.0.1:1"]) == 69
    assert "127.0.0.1:1" in capsys.readouterr().err


def test_workers_end_with_a_killed_demo() -> None:
    with Cli("demo", env=environ()) as demo:
        acquired = STEP.match(demo.stdout.wait_for(lambda line: "acquired" in line, "holder"))
        assert acquired
        workers = pids(demo.stdout.seen)
        demo.send(signal.SIGKILL)
        demo.end()
        until(lambda: not any(map(is_alive, workers)), "workers ended")


def test_ctrl_c_is_130_and_ends_the_workers() -> None:
    with Cli("demo", env=environ()) as demo:
        demo.stdout.wait_for(lambda line: "acquired" in line, "holder")
        os.killpg(demo.pid, signal.SIGINT)
        assert demo.end() == 130
        workers = pids(demo.stdout.all())
        until(lambda: not any(map(is_alive, workers)), "workers ended")
        assert not any(demo.stderr.all())


@pytest.mark.slow
def test_a_holder_that_dies_by_itself_is_a_fault_and_the_play_goes_on() -> None:
    with Cli("demo", "--ttl", "1", env=environ()) as demo:
        acquired = STEP.match(demo.stdout.wait_for(lambda line: "acquired" in line, "holder"))
        assert acquired
        started = [step for step in steps(demo.stdout.seen) if step["what"] == "started"]
        pid = next(step["detail"] for step in started if step["name"] == acquired["name"])
        os.kill(int(pid.removeprefix("pid ")), signal.SIGKILL)
        assert demo.end() == 1
        told = demo.stdout.all()
        assert [line for line in told if "WRONG" in line] == [
            f"WRONG: {acquired['name']} failed with exit code -9"
        ]
        assert len([step for step in steps(told) if step["what"] == "acquired"]) == 4
        assert demo.stderr.all() == []


def test_the_log_is_read_in_order_with_deaths_as_ends() -> None:
    log = (
        '{"worker": "b", "what": "start", "fence": 7, "time": 3.0}\n'
        '{"worker": "a", "what": "start", "fence": 5, "time": 1.0}\n'
        '{"worker": "a", "what": "end", "fence": 5, "time": 2.0}\n'
    )
    assert read_log(log, deaths={"b": 4.0}) == [Held("a", 5, 1.0, 2.0), Held("b", 7, 3.0, 4.0)]


@pytest.mark.parametrize(
    ("holds", "found"),
    [
        ([Held("a", 5, 1.0, 2.0), Held("b", 7, 3.0, 4.0)], []),
        ([Held("a", 7, 1.0, 2.0), Held("b", 7, 3.0, 4.0)], ["b got fence 7, not above a's 7"]),
        ([Held("a", 5, 1.0, 3.5), Held("b", 7, 3.0, 4.0)], ["b had the lock while a still had it"]),
        ([Held("a", 5, 1.0, None), Held("b", 7, 3.0, 4.0)], ["b had the lock while a still had it"]),
        ([Held("a", 5, 1.0, 2.0)], ["b had the lock 0 times instead of once"]),
    ],
)
def test_the_verdict_names_each_fault(holds: list[Held], found: list[str]) -> None:
    assert list(faults(holds, workers=["a", "b"])) == found
