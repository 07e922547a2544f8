"""The page on Celery, in a real worker and under real beats; the broker is a folder."""

from __future__ import annotations

import re
import shlex
import sys
from typing import TYPE_CHECKING

import pytest

from consul_coord import Client, Lock, leader
from tests.integrations import pages
from tests.integrations.programs import PATIENCE, eventually, serving

pytest.importorskip("celery", reason="needs celery: nox -s integrations")

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = """
broker_url = "filesystem://"
broker_transport_options = dict(data_folder_in="queue", data_folder_out="queue", control_folder="control")
task_ignore_result = True
worker_hijack_root_logger = False
beat_schedule = {"settle": {"task": "shop.settle", "schedule": 0.2, "args": (1,)}}
"""
SEND = "import shop; shop.settle.delay(1); shop.settle.delay(2); shop.settle.delay(1)"
WORKER = [
    sys.executable,
    "-m",
    "celery",
    "-A",
    "shop",
    "worker",
    "--concurrency",
    "2",
    "--loglevel",
    "WARNING",
]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(pages.blocks("celery", "python")[0], encoding="utf-8")
    (tmp_path / "celeryconfig.py").write_text(CONFIG, encoding="utf-8")
    (tmp_path / "queue").mkdir()
    (tmp_path / "control").mkdir()
    return tmp_path


@pytest.mark.slow
def test_tasks_wait_for_the_lock_and_a_worker_that_ends_leaves_no_session(
    address: str, project: Path
) -> None:
    with Client(address=address) as client:
        before = {session.id for session in client.session.list().value}
        held = Lock(client, "accounts/1").acquire(timeout=PATIENCE)
        pages.run(SEND, folder=project, address=address, more={"PYTHONPATH": str(project)})
        with serving(WORKER, folder=project, address=address) as worker:
            worker.wait_for("settling 2, fence")
            assert "settling 1" not in "".join(worker.said)
            held.release()
            fences = worker.wait_for(r"settling 1, fence (\d+)(?:.|\n)*settling 1, fence (\d+)")
            assert held.fence < int(fences[1]) < int(fences[2])
            assert worker.end() == 0, "".join(worker.said)
        own = {client_session.id for client_session in client.session.list().value} - before
        assert own <= {held.session}


@pytest.mark.slow
def test_one_beat_runs_and_the_next_machine_takes_over(address: str, project: Path) -> None:
    (line,) = [text for text in pages.blocks("celery", "sh") if "elect" in text]
    elect = re.sub(r"/var/lib/shop/beat", "MACHINE", line.strip())
    with Client(address=address) as client:
        with serving(command(elect, "first"), folder=project, address=address) as first:
            first.wait_for(r"beat: Starting|Sending due task")
            leads = eventually(lambda: leader(client, "service/beat"))
            with serving(command(elect, "second"), folder=project, address=address) as second:
                lock = Lock(client, "service/beat")
                eventually(lambda: lock.contenders() or None)
                assert not re.search("beat: Starting", "".join(second.said))
                first.end()
                second.wait_for(r"beat: Starting|Sending due task")
                now = leader(client, "service/beat")
                assert now is not None
                assert now.term > leads.term
                second.end()
        assert leader(client, "service/beat") is None


def command(line: str, machine: str) -> list[str]:
    words = shlex.split(line.replace("MACHINE", machine))
    return [sys.executable, "-m", "consul_coord", *words[1:], "--loglevel", "INFO"]
