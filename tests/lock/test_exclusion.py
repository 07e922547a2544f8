"""At most one hold at a time, with rising fences, over threads, clients and processes."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from consul_coord import Lock
from tests.lock import programs

if TYPE_CHECKING:
    from pathlib import Path

    from tests.lock.conftest import MakeClient
    from tests.support.sites import Site

ROUNDS = 12

CONTEND = f"""
log = os.open({{path!r}}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
for _ in range({ROUNDS}):
    with lock as hold:
        os.write(log, f"{{{{hold.fence}}}} in\\n".encode())
        os.write(log, f"{{{{hold.fence}}}} out\\n".encode())
client.close()
"""


@pytest.mark.parametrize("shared", [True, False], ids=["one client", "a client each"])
@pytest.mark.parametrize("fair", [True, False], ids=["fair", "barging"])
def test_threads_exclude_each_other(site: Site, make_client: MakeClient, shared: bool, fair: bool) -> None:
    one = make_client()
    inside, fences = threading.Semaphore(1), list[int]()

    def work() -> None:
        lock = Lock(one if shared else make_client(), site.key, fair=fair)
        for _ in range(ROUNDS):
            with lock.hold(timeout=20) as hold:
                assert inside.acquire(blocking=False), "two threads hold it"
                fences.append(hold.fence)
                inside.release()

    with ThreadPoolExecutor(5) as pool:
        for call in [pool.submit(work) for _ in range(5)]:
            call.result(50)
    assert len(fences) == 5 * ROUNDS
    assert fences == sorted(set(fences))
    assert site.operator.under(f"{site.key}/") == []


def test_one_lock_object_serves_many_threads_in_order(site: Site, make_client: MakeClient) -> None:
    lock = Lock(make_client(), site.key)
    hold, order = lock.acquire(), list[int]()
    threads = []
    for number in range(6):
        thread = threading.Thread(target=lambda n=number: lock.run(lambda _: order.append(n)))
        position = len(lock._runner.core.tickets.queue(site.key))
        thread.start()
        threads.append(thread)
        while len(lock._runner.core.tickets.queue(site.key)) == position:
            assert thread.is_alive()
    hold.release()
    for thread in threads:
        thread.join(10)
    assert order == list(range(6))


def test_processes_exclude_each_other(site: Site, tmp_path: Path) -> None:
    path = tmp_path / "log"
    program = CONTEND.format(path=str(path))
    for process in [programs.start(program, site) for _ in range(3)]:
        programs.finish(process)
    lines = path.read_text().split("\n")[:-1]
    entered, left = lines[::2], lines[1::2]
    assert len(entered) == 3 * ROUNDS
    assert [line.replace(" in", " out") for line in entered] == left
    fences = [int(line.split()[0]) for line in entered]
    assert fences == sorted(set(fences))
    assert site.left_behind() == []


def test_a_killed_holder_is_succeeded(site: Site, make_client: MakeClient) -> None:
    program = """
short = SessionSpec(ttl=0.6, lock_delay=0, name=NAME, allow_unbounded=True)
hold = Lock(client, KEY, session=short).acquire()
say(hold.fence)
time.sleep(60)
"""
    process = programs.start(program, site)
    fence = int(process.stdout.readline())
    process.kill()
    process.communicate()
    assert Lock(make_client(), site.key).acquire(timeout=5).fence > fence
