"""What outlives an agent: what a watch sees of its end, and what is there again after a restart."""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import pytest

from consul_coord.server import ReferenceServer, ServerConfig
from consul_coord.testing.agent import RealAgent
from tests.cli.processes import Cli, environ
from tests.conformance.target import DEADLINE, Target, until

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from pathlib import Path

    from consul_coord.clock import SystemClock

SETTLE: Final = 0.3
TTL: Final = 1.5
LOCK_DELAY: Final = 2.0
BOTH: Final = ["reference", pytest.param("agent", marks=pytest.mark.agent)]

pytestmark = pytest.mark.timeout(120)


@dataclass(frozen=True)
class Process:
    """A server in a process of its own, and its two ends."""

    target: Target
    terminate: Callable[[], object]
    kill: Callable[[], object]


@contextmanager
def command() -> Generator[Process, None, None]:
    with Cli("serve", env=environ()) as server:
        target = Target("reference", server.stdout.wait_for(lambda _: True, "address"))
        yield Process(target, partial(server.send, signal.SIGTERM), partial(server.send, signal.SIGKILL))


@contextmanager
def agent(binary: Path) -> Generator[Process, None, None]:
    with RealAgent(binary=binary) as running:
        yield Process(Target("agent", running.address), running.terminate, running.kill)


@pytest.fixture(params=BOTH)
def process(request: pytest.FixtureRequest) -> Iterator[Process]:
    starts = command() if request.param == "reference" else agent(request.getfixturevalue("consul_binary"))
    with starts as running:
        yield running


@pytest.mark.parametrize("end", ["terminate", "kill"])
def test_the_end_of_the_process_during_a_watch(process: Process, end: str) -> None:
    """One that is asked to end answers its watches with what there is; one that is killed, nothing."""
    target = process.target
    target.put("/v1/kv/k", b"v")
    before = target.get("/v1/kv/k")
    with ThreadPoolExecutor() as pool:
        watch = pool.submit(target.get, f"/v1/kv/k?index={before.index}&wait=300s")
        with pytest.raises(TimeoutError):
            watch.result(SETTLE)
        getattr(process, end)()
        if end == "terminate":
            answer = watch.result(DEADLINE)
            assert (answer.status, answer.json, answer.index) == (200, before.json, before.index)
        else:
            with pytest.raises(ConnectionError):
                watch.result(DEADLINE)
    until(lambda: is_refused(target))


def is_refused(target: Target) -> bool:
    try:
        target.get("/v1/status/leader")
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


@dataclass(frozen=True)
class Persistent:
    """A single server that comes back with its data."""

    target: Target
    restart: Callable[[], object]


@contextmanager
def restored() -> Generator[Persistent, None, None]:
    def restart(server: ReferenceServer[SystemClock]) -> None:
        server.restore(server.snapshot())

    with ReferenceServer(config=ServerConfig(session_ttl_min=0.2)) as server:
        yield Persistent(Target("reference", server.address), partial(restart, server))


@contextmanager
def restarted(binary: Path, folder: Path) -> Generator[Persistent, None, None]:
    def restart(running: RealAgent) -> None:
        running.kill()
        running.restart()

    with RealAgent(binary=binary, data_dir=folder) as running:
        yield Persistent(Target("agent", running.address), partial(restart, running))


@pytest.fixture(params=BOTH)
def persistent(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Persistent]:
    if request.param == "reference":
        starts = restored()
    else:
        starts = restarted(request.getfixturevalue("consul_binary"), tmp_path)
    with starts as running:
        yield running


@pytest.mark.slow
def test_a_restart_of_a_single_server(persistent: Persistent) -> None:
    """Keys, sessions and locks are kept, and each TTL starts afresh, counted from the new start.

    A real agent reads its log again, and every lock-delay in it begins again with that. The reference server
    has no disk and no log: it goes back to a snapshot, which holds no lock-delays at either.
    """
    target = persistent.target
    held, freed = target.key("held"), target.key("freed")
    holder = target.session(TTL=f"{TTL}s")
    lasting, gone, other = (
        target.session(TTL="10s"),
        target.session(LockDelay=f"{LOCK_DELAY}s"),
        target.session(),
    )
    assert target.put(f"/v1/kv/{held}?acquire={holder}", b"v").json is True
    assert target.put(f"/v1/kv/{freed}?acquire={gone}").json is True
    before = target.entry(held)
    assert target.put(f"/v1/session/destroy/{gone}").json is True
    assert target.put(f"/v1/kv/{freed}?acquire={other}").json is False
    time.sleep(TTL / 2)  # a TTL that goes on counting then ends too early
    stopped = time.monotonic()
    persistent.restart()
    until(lambda: target.put(f"/v1/session/renew/{lasting}").status == 200)
    assert target.entry(held) == before
    assert target.info(gone) == []
    if target.kind == "agent":
        until(lambda: target.put(f"/v1/kv/{freed}?acquire={other}").json is True)
        assert time.monotonic() - stopped >= LOCK_DELAY
    else:
        assert target.put(f"/v1/kv/{freed}?acquire={other}").json is True
    until(lambda: target.info(holder) == [])
    assert time.monotonic() - stopped >= 2 * TTL
    assert "Session" not in target.entry(held)
    assert target.info(lasting)
