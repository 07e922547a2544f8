"""Elections together with Consul's own command line: ``consul lock PREFIX`` locks ``PREFIX/.lock``."""

from __future__ import annotations

import signal
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from consul_coord import Client, LeaderElection, leader
from tests.election.conftest import QUICK, SPEC
from tests.election.waiting import PATIENCE, queued, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def prefix(key: str) -> str:
    return f"{key}/go"


@contextmanager
def consul_lock(binary: Path, address: str, prefix: str, marker: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``consul lock``, whose command makes a file and then waits."""
    command = f"touch '{marker}'; exec sleep 600"
    process = subprocess.Popen(
        [binary, "lock", f"-http-addr={address}", prefix, command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        process_group=0,
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)


def test_consul_lock_and_an_election_lead_in_turn(
    consul_binary: Path, agent_address: str, prefix: str, tmp_path: Path
) -> None:
    key = f"{prefix}/.lock"
    with (
        Client(address=agent_address, session=SPEC) as client,
        LeaderElection(client, key, value="ours", retry_wait=QUICK) as election,
    ):
        term = election.wait_for_leadership(timeout=PATIENCE).term
        marker = tmp_path / "theirs"
        before = client.session.list().value
        with consul_lock(consul_binary, agent_address, prefix, marker) as theirs:
            until(lambda: set(client.session.list().value) - set(before), "their session")
            assert not marker.exists()
            election.resign(pause=1.0)
            until(marker.exists, "their turn")
            queued(election, 1)
            assert not election.is_leader
            found = leader(client, key)
            assert found is not None
            assert found.term > term
            theirs.send_signal(signal.SIGTERM)
            assert election.wait_for_leadership(timeout=PATIENCE).term > found.term
