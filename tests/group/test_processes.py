"""Members that are killed or forked, on a real agent and the reference server."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from consul_coord import Group, failover_bound
from tests.election.waiting import until
from tests.group.conftest import SPEC
from tests.group.seeing import Seen

if TYPE_CHECKING:
    from consul_coord import Client

PROGRAM = """
import sys, time
from consul_coord import *
address, prefix, name = sys.argv[1:]
with Client(address=address, session=SessionSpec(ttl=0.8, lock_delay=2.0)) as client:
    Group(client, prefix, id=name).join(timeout=30)
    print("joined", flush=True)
    time.sleep(60)
"""


def start(address: str, prefix: str, name: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, address, prefix, name]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "joined\n"
    return process


@pytest.mark.slow
def test_a_member_that_is_killed_is_gone_and_can_come_back(address: str, client: Client, prefix: str) -> None:
    with Seen(Group(client, prefix)) as seen:
        first = start(address, prefix, "one")
        try:
            seen.until_present("one")
        finally:
            first.kill()
            first.communicate()
        killed = time.monotonic()
        second = start(address, prefix, "one")  # under the same name: waits until the first one is gone
        try:
            assert time.monotonic() - killed < failover_bound(SPEC)
            until(lambda: len(seen.states) >= 3, "it went and came back")
            seen.until_present("one")
        finally:
            second.kill()
            second.communicate()
        seen.until_present()


def test_a_forked_child_is_no_member_and_has_another_name(client: Client, prefix: str) -> None:
    with Group(client, prefix) as group:
        name = group.id
        child = os.fork()
        if child == 0:
            os._exit(int(group.joined) + 2 * int(group.id == name))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert [member.id for member in group.members()] == [name]
