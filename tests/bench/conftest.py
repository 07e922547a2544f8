"""The bed that measures run on in tests: an agent that takes as many connections as a measure opens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bench.__main__ import AGENT
from bench.bed import Bed
from consul_coord.testing.agent import RealAgent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def bench_agent(consul_binary: Path) -> Iterator[RealAgent]:
    with RealAgent(binary=consul_binary, config=AGENT) as agent:
        yield agent


@pytest.fixture(scope="session")
def bed(bench_agent: RealAgent, tmp_path_factory: pytest.TempPathFactory) -> Bed:
    # One folder for all, so that the Go program is built once.
    return Bed(address=bench_agent.address, quick=True, smoke=True, folder=tmp_path_factory.mktemp("bench"))
