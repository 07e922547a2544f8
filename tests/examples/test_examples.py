"""Every example, run as its reader would: it ends in time, says what it should, and leaves no session."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import consul_coord
from consul_coord import Client
from consul_coord.server import ReferenceServer
from tests.support.programs import Program

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = Path(consul_coord.__file__).parent.parent / "examples"
PATIENCE = 100.0
"""Seconds that an example may take."""

SAYS: dict[str, tuple[str, ...]] = {
    "async_workers": (r"6 additions, at most [12] readers at a time",),
    "config_by_leader": (r"leader, term \d+: rate 10", r"reader: rate 20", r"the last rate is 30"),
    "cron_on_one_node": (r"node-\d: running .*, fence \d+", r"node-\d: done already", r"ran 1 time\(s\)"),
    "fastapi_leader": (
        r"'leader': 'instance-1', 'here': True, 'healthy': True",
        r"'accepted': True, 'term': \d+",
    ),
    "fenced_register": (
        r"refused: fence \d+ after \d+",
        r"the register says: from the second",
        r"lost it: (released_by_other|taken_over)",
    ),
    "guarded_writes": (
        r"counted to 1\ncounted to 2\nthe other counted to 3\n",
        r"refused: (stale_index|not_holder)",
        r"the counter says 3",
    ),
    "leader_with_followers": (r"follower: 10\.0\.0\.\d:80 leads, term \d+", r"followed 3 leaders"),
    "rate_limited_api": (r"9 answers, at most [1-3] at a time",),
    "read_write_config": (r"swapping, 0 reading\n", r"at most 4 read at once; now db-2 and db-1"),
    "sharded_workers": (
        r"3 members, each shard has one owner",
        r"worker-2 has left; the others own its shards",
        r"12 shards, no fence went down",
    ),
    "singleton_worker": (r"worker-\d does task-1\nworker-\d does task-2\n", r"0 task\(s\) left"),
}
"""What each prints, as regular expressions."""

LOSS = r"lost examples/.* \(fence \d+, session \S+\): (released by other|taken over)\n"
LOGS: dict[str, str] = dict.fromkeys(("fenced_register", "guarded_writes"), LOSS)
"""What those log that lose a lock: that it was released, or, if they look late, that another has it."""


@pytest.fixture(scope="module")
def reference_address() -> Iterator[str]:
    with ReferenceServer() as server:
        yield server.address


@pytest.fixture(params=["reference server", "real agent"])
def address(request: pytest.FixtureRequest) -> str:
    name = {"reference server": "reference_address", "real agent": "agent_address"}[request.param]
    found: str = request.getfixturevalue(name)
    return found


def test_every_example_is_run_and_listed() -> None:
    files = {path.stem for path in FOLDER.glob("*.py")}
    assert files == SAYS.keys()
    listed = set(re.findall(r"\((\w+)\.py\)", (FOLDER / "README.md").read_text(encoding="utf-8")))
    assert listed == files


@pytest.mark.parametrize("name", sorted(SAYS))
def test_it_runs_ends_and_says_what_it_should(name: str, address: str) -> None:
    with Client(address=address) as client:
        before = {session.id for session in client.session.list().value}
        settings = {key: value for key, value in os.environ.items() if not key.startswith("CONSUL_")}
        settings["CONSUL_HTTP_ADDR"] = address
        with Program(["-W", "error", str(FOLDER / f"{name}.py")], env=settings) as example:
            out, err = example.communicate(PATIENCE)
            assert example.wait() == 0, err
        assert re.fullmatch(LOGS.get(name, ""), err), err
        for pattern in SAYS[name]:
            assert re.search(pattern, out), f"no {pattern!r} in {out!r}"
        assert {session.id for session in client.session.list().value} <= before
