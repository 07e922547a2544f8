"""A fleet under fire runs each period's job once: short on the reference server, long on a real agent."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from consul_coord.server import ReferenceServer
from consul_coord.testing.agent import RealAgent
from tests.lock.conftest import CONFIG
from tests.once.trial import Setting, Trial

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow
def test_a_small_fleet_runs_each_period_once(tmp_path: Path) -> None:
    with ReferenceServer(config=CONFIG) as server:
        setting = Setting(
            address=server.address,
            folder=tmp_path,
            workers=5,
            periods=4,
            period_takes=2.0,
            skew=120,
            ttl=0.5,
            lock_delay=0.4,
            fault_every=0.2,
        )
        evidence = Trial(setting, restart=None, seed=1).run()
    assert evidence.wrong() == []
    assert len(evidence.done) >= 2


@pytest.mark.long
@pytest.mark.agent
@pytest.mark.timeout(1200)
def test_fifty_processes_run_twenty_periods_once_each(consul_binary: Path, tmp_path: Path) -> None:
    data, told = tmp_path / "data", tmp_path / "told"
    told.mkdir()
    with RealAgent(binary=consul_binary, data_dir=data) as agent:

        def restart() -> None:
            agent.kill()
            agent.restart()

        setting = Setting(
            address=agent.address,
            folder=told,
            workers=50,
            periods=20,
            period_takes=20,
            skew=180,
            ttl=5,
            lock_delay=5,
            fault_every=2.0,
        )
        evidence = Trial(setting, restart=restart, seed=1).run()
    sys.stdout.write(f"{evidence.told()}\n")
    assert evidence.wrong() == []
    assert evidence.left_out() == []
    assert len(evidence.done) >= 19
