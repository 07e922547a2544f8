"""The page on APScheduler: jobs move with the leadership. Its own program is run with the other pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integrations import pages

pytest.importorskip("apscheduler", reason="needs apscheduler: nox -s integrations")

if TYPE_CHECKING:
    from pathlib import Path

TWO = """
def job_of(here, name, ran):
    @here.scheduler.scheduled_job("interval", seconds=0.02, coalesce=True)
    def job():
        if here.leadership() is not None:
            runs.append(name)
            ran.set()

runs = []
first_ran, second_ran = threading.Event(), threading.Event()
with Client() as one, Client() as two:
    first, second = Scheduled(one), Scheduled(two)
    job_of(first, "first", first_ran)
    job_of(second, "second", second_ran)
    with first.election:
        assert first_ran.wait(30)
        with second.election:
            while not second.election.candidates():
                pass
            print(set(runs))
            first.election.resign(pause=60)
            assert second_ran.wait(30)
            first.scheduler.shutdown()
            second.scheduler.shutdown()
print(runs[runs.index("second"):].count("first"))
"""


def test_jobs_move_with_the_leadership(address: str, tmp_path: Path) -> None:
    scheduled = pages.blocks("apscheduler", "python")[1].partition("ran = threading.Event()")[0]
    assert pages.run(scheduled + TWO, folder=tmp_path, address=address) == "{'first'}\n0\n"
