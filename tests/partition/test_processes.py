"""Members that are killed and stopped: never two believers of one partition, and never none for long."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest

from proof.partitions.judge import Spans, judge
from proof.partitions.member import Setting, last_look, looks
from tests.election.waiting import until

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path


class Crowd:
    """Members as processes, some of which are hurt."""

    def __init__(self, setting: Setting, folder: Path, *names: str) -> None:
        self.setting, self.folder = setting, folder
        self.members = {name: self._start(name) for name in names}

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        return self.setting.start(name, self.folder / f"{name}.looks")

    def kill(self, name: str, successor: str) -> None:
        """Kill a member, and start another one."""
        process = self.members.pop(name)
        process.kill()
        process.wait()
        self.members[successor] = self._start(successor)

    def stop(self, name: str, seconds: float) -> None:
        """Stop a member for a while."""
        self.members[name].send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self.members[name].send_signal(signal.SIGCONT)

    def end(self) -> None:
        for process in self.members.values():
            process.kill()
            process.wait()

    def until_all_owned(self) -> None:
        """Wait until each partition has been believed in lately."""

        def owned() -> bool:
            now = time.monotonic()
            latest = (last_look(self.folder / f"{name}.looks") for name in self.members)
            lately = {one for look in latest if look and look.before > now - 0.5 for one in look.fences}
            return len(lately) == self.setting.partitions

        until(owned, "all partitions have an owner")

    def spans(self) -> Spans:
        spans = Spans()
        for file in self.folder.glob("*.looks"):
            for look in looks(file):
                spans.add(file.stem, look)
        return spans


@pytest.mark.slow
def test_no_partition_has_two_believers_when_members_are_killed_and_stopped(
    address: str, prefix: str, tmp_path: Path
) -> None:
    setting = Setting(address=address, prefix=prefix, partitions=8, ttl=1.0, tick=0.01)
    crowd = Crowd(setting, tmp_path, "m0", "m1", "m2")
    try:
        crowd.until_all_owned()
        crowd.kill("m0", "m3")
        crowd.stop("m1", 3.5)  # longer than its session lasts: it wakes up as a former owner
        crowd.until_all_owned()
    finally:
        crowd.end()
    verdict = judge(crowd.spans(), members=["m0", "m1", "m2", "m3"])
    assert verdict.two_believers == []
    assert verdict.moves > 0
