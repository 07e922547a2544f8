"""Fixtures for everything under ``tests/``.

Rules
- Whoever needs a real agent asks for a fixture; the marker ``agent`` follows from that, and is written
  nowhere.
- Every test is searched for tokens in what it says: see ``tests/tokens/search.py``.
- Tests send signals to programs that they start, and to themselves. A pytest that was started in the
  background may ignore some, which children inherit: `pytest_configure` takes that back.
- There are four tiers, and a test is in one of them: without a marker, what a person runs; ``slow``, which
  takes more than some two seconds of waiting or one of work (leases that run out, outages, whole programs,
  all of ``cluster``); ``search``, which looks for faults among many runs, from where ``search_seed`` says,
  or checks a tool for that; ``long``, of which CI runs other clients' suites and the quick forms of the
  benchmarks, one half at a time. Of two markers the later one in this list counts.
- Where nothing is compiled yet, each worker would compile all of it. So one goes ahead, and the others read
  what it has compiled.
- No Consul binary means skipped tests, with the reason; under CONSUL_COORD_REQUIRE_AGENT=1 it means failed
  ones, so that a build can't pass without them.
"""

from __future__ import annotations

import gc
import os
import random
import signal
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from consul_coord.testing.agent import RealAgent, find_consul
from tests.support.portions import is_in, parse
from tests.support.turns import first_goes_ahead

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

pytest_plugins = ["tests.tokens.search", "tests.support.ends", "tests.support.scripts"]

# How long an example takes depends on what else the machine does: that is no finding. One commit has one
# result: other examples are tried with `--hypothesis-profile=random`, and `--hypothesis-seed` says which.
settings.register_profile(
    "consul_coord", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.register_profile("random", settings.get_profile("consul_coord"), derandomize=False)
settings.load_profile("consul_coord")

_NO_BINARY = "no Consul binary: run tools/install-consul, or set CONSUL_BIN"
_AGENT_FIXTURES = frozenset({"consul_binary", "real_agent", "agent_address"})


def pytest_configure() -> None:
    # Other programs inherit SIG_IGN, but no handler. So children have the defaults, and what `nohup` promises
    # for pytest itself stays: a hang-up does not end it.
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # tests interrupt themselves
    # Each worker has an agent or several, which share the cores: that many threads each only cost time.
    os.environ.setdefault("GOMAXPROCS", "1")
    os.environ.setdefault("GOGC", "400")
    # Under asyncio.run nothing tells anyio, in a callback of the loop, which library runs. Nor does it here.
    untold = pytest.MonkeyPatch()
    untold.setattr("anyio.pytest_plugin.set_current_async_library", lambda _: None, raising=False)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--portion",
        type=parse,
        metavar="K/N",
        help="run the K-th of N portions of what is selected; a K beyond N begins again",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if (portion := config.getoption("--portion")) is not None:
        left_out = [item for item in items if not is_in(item.nodeid, portion)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if is_in(item.nodeid, portion)]
    for item in items:
        if isinstance(item, pytest.Function) and not _AGENT_FIXTURES.isdisjoint(item.fixturenames):
            item.add_marker(pytest.mark.agent)
        if item.get_closest_marker("cluster") is not None:
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    is_one_of_several = hasattr(session.config, "workerinput")
    with first_goes_ahead(Path(__file__)) if is_one_of_several else nullcontext():
        return (yield)


def pytest_collectstart() -> None:
    gc.disable()  # next to nothing is garbage until the end, and looking takes a sixth of the time


def pytest_collection_finish() -> None:
    # What collecting has made stays until the end. The garbage collector would look through thousands of
    # tests at each of its rounds, and the tests of one folder ask for two rounds each.
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def search_seed(request: pytest.FixtureRequest) -> int:
    """Return the number that chooses the portion of all random runs that a search takes.

    It is that of ``--hypothesis-seed``; without one it is 0, or any under ``--hypothesis-profile=random``.
    """
    if (given := request.config.getoption("--hypothesis-seed")) is not None:
        return int(given)
    return 0 if settings().derandomize else random.SystemRandom().randrange(2**32)


@pytest.fixture(scope="session")
def consul_binary() -> Path:
    """Return the Consul program; without one the test is skipped, or fails if agents are required."""
    binary = find_consul()
    if binary is not None:
        return binary
    if os.environ.get("CONSUL_COORD_REQUIRE_AGENT") == "1":
        pytest.fail(f"{_NO_BINARY} (CONSUL_COORD_REQUIRE_AGENT=1 forbids skipping)")
    pytest.skip(_NO_BINARY)


@pytest.fixture(scope="session")
def real_agent(consul_binary: Path) -> Iterator[RealAgent]:
    """Yield the one agent of this test process. Shared: use keys of your own, and leave it running."""
    with RealAgent(binary=consul_binary) as agent:
        yield agent


@pytest.fixture(scope="session")
def agent_address(real_agent: RealAgent) -> str:
    """Return the shared agent's HTTP address."""
    return real_agent.address
