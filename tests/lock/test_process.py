"""Locks when processes fork, exit or are stopped: released, or the parent's, never in limbo."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from consul_coord import Lock
from tests.lock import programs
from tests.support.sites import eventually

if TYPE_CHECKING:
    from tests.lock.conftest import MakeClient
    from tests.support.proxy import FaultProxy
    from tests.support.sites import Site

EXITS = {
    "end": "",
    "sys.exit": "sys.exit(0)",
    "in a thread": "t = threading.Thread(target=Lock(client, KEY + '2').acquire); t.start(); t.join()",
    "with a callback thread": "hold.on_lost(print); client._runner._host.call_back(lambda: None)",
}


@pytest.mark.parametrize("how", EXITS)
def test_an_exit_releases_and_destroys(site: Site, how: str) -> None:
    program = f"hold = lock.acquire()\nsay(hold.is_held)\n{EXITS[how]}"
    assert programs.run(program, site)[0] == "True"
    assert site.left_behind() == []
    assert site.operator.entry(site.key) is not None


def test_an_exception_at_top_level_releases(site: Site) -> None:
    process = programs.start("hold = lock.acquire()\nraise ValueError('made up')", site)
    _, err = process.communicate(timeout=programs.TIMEOUT)
    assert process.returncode == 1
    assert err.rstrip().endswith("ValueError: made up")
    assert site.left_behind() == []


def test_an_exit_without_an_agent_takes_no_longer_than_its_time(site: Site, proxy: FaultProxy) -> None:
    program = """
hold = lock.acquire()
say("held")
sys.stdin.readline()
client.close(timeout=0.5)
say(hold.state, client.pending_cleanup)
"""
    process = programs.start(program, site, address=proxy.address)
    assert process.stdout.readline() == "held\n"
    proxy.go_down()
    process.stdin.write("\n")
    assert programs.finish(process) == ["lost 2"]


def by_name(address: str) -> str:
    return address.replace("127.0.0.1", "localhost")


USES = {
    "blocking": """
hold = lock.acquire()
say("held")
sys.stdin.readline()
silent.set()
say("asked", asked.wait(10))
client.close(timeout=0.5)
""",
    "async": """
import asyncio
async def main():
    client = AsyncClient(ADDRESS, session=SessionSpec(ttl=10, lock_delay=0, name=NAME, allow_unbounded=True))
    await client.__aenter__()
    await AsyncLock(client, KEY).acquire()
    say("held")
    sys.stdin.readline()
    silent.set()
    while not asked.is_set():
        await asyncio.sleep(0.01)
    say("asked", True)
    await client.close(timeout=0.5)
asyncio.run(main())
""",
}


@pytest.mark.parametrize("use", USES)
def test_an_exit_does_not_wait_for_a_name_server_that_hangs(site: Site, proxy: FaultProxy, use: str) -> None:
    program = """
import socket
looked_up, silent, asked = socket.getaddrinfo, threading.Event(), threading.Event()
def look_up(*arguments, **options):
    if silent.is_set():
        asked.set()
        time.sleep(20)
    return looked_up(*arguments, **options)
socket.getaddrinfo = look_up
"""
    process = programs.start(program + USES[use], site, address=by_name(proxy.address))
    assert process.stdout.readline() == "held\n"
    proxy.go_down()
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "asked True\n"
    began = time.monotonic()
    assert programs.finish(process) == []
    assert time.monotonic() - began < 10.0


def test_a_hold_that_outlives_the_main_thread_is_watched_at_an_agent_with_a_name(
    site: Site, proxy: FaultProxy
) -> None:
    program = """
hold = lock.acquire()
def work():
    threading.main_thread().join()
    say(hold.session)
    say(hold.lost.wait(3.0))
threading.Thread(target=work).start()
"""
    process = programs.start(program, site, address=by_name(proxy.address))
    session = process.stdout.readline().strip()
    eventually(lambda: any("wait=" in each.path for each in proxy.requests))
    proxy.cut()
    site.operator.destroy(session)
    assert programs.finish(process) == ["True"]


LAST_WORKS = {
    "nothing": "",
    "a thread": "threading.Thread(target=lambda: (time.sleep(0.5), say(hold.is_held))).start()",
    "a thread that begins another": (
        "threading.Timer(0.3, lambda: threading.Timer(0.3, lambda: say(hold.is_held)).start()).start()"
    ),
    "an idle pool": "pool = ThreadPoolExecutor(1); pool.submit(lambda: say(hold.is_held)).result()",
}


@pytest.mark.parametrize("last_work", LAST_WORKS)
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_the_end_of_a_multiprocessing_child_releases_and_destroys(
    site: Site, method: str, last_work: str
) -> None:
    child = f"""
import __main__, threading, time
from concurrent.futures import ThreadPoolExecutor
from consul_coord import *
client = Client(address=ADDRESS, session=SessionSpec(ttl=10, lock_delay=0, name=NAME, allow_unbounded=True))
hold = Lock(client, KEY).acquire(timeout=10)
def say(word):
    print(word, flush=True)
__main__.kept = client, hold
{LAST_WORKS[last_work]}
"""
    program = f"""
import multiprocessing
names = dict(ADDRESS=ADDRESS, KEY=KEY, NAME=NAME)
child = multiprocessing.get_context({method!r}).Process(target=exec, args=({child!r}, names))
child.start()
child.join()
say(child.exitcode)
"""
    told = ["True"] if LAST_WORKS[last_work] else []
    assert programs.run(program, site) == [*told, "0"]
    assert site.left_behind() == []
    assert site.operator.entry(site.key) is not None


def test_a_childs_exit_does_no_io_and_leaves_the_parent_alone(site: Site, proxy: FaultProxy) -> None:
    program = """
with lock as hold:
    with Lock(client, KEY + "2"):
        pass
    say("fork")
    sys.stdin.readline()
    pid = os.fork()
    if pid == 0:
        sys.exit(0)
    _, status = os.waitpid(pid, 0)
    say(status, hold.state)
    hold.put(b"still mine")
    say(hold.verify())
"""
    process = programs.start(program, site, address=proxy.address)
    assert process.stdout.readline() == "fork\n"
    before = len(proxy.requests)
    # In the child, the block is left by SystemExit: the hold is the parent's, so nothing is raised or sent.
    assert programs.finish(process) == ["0 held", "True"]
    sent = [(each.method, each.path.split("?")[0]) for each in proxy.requests[before:]]
    expected = [
        ("PUT", "/v1/txn"),  # put
        ("GET", f"/v1/kv/{site.key}"),  # verify
        ("PUT", "/v1/txn"),  # release
    ]
    assert [each for each in sent if each in expected and each[0] == "PUT"] == [expected[0]] * 2
    assert sum(path.startswith("/v1/session/destroy") for _, path in sent) == 1
    assert site.left_behind() == []


def test_a_childs_inherited_holds_are_lost_and_its_own_work_starts_afresh(site: Site) -> None:
    program = """
told = []
hold = lock.acquire()
hold.on_lost(lambda reason: told.append(reason))
pid = os.fork()
if pid == 0:
    say(hold.state, hold.reason, hold.is_held, hold.release(), client.stats().requests)
    try:
        hold.put(b"x")
    except LockLost as error:
        say(error.reason)
    say(Lock(client, KEY).try_acquire())
    with Lock(client, KEY + "2") as own:
        say(own.session != hold.session, own.is_held)
    while not told:
        time.sleep(0.01)
    say(told[0])
    sys.exit(0)
_, status = os.waitpid(pid, 0)
say(status, hold.state, hold.verify(), told)
say(hold.release())
"""
    assert programs.run(program, site) == [
        "lost forked False already_lost 0",
        "forked",
        "None",
        "True True",
        "forked",
        "0 held True []",
        "released",
    ]
    assert site.left_behind() == []


def test_a_child_waits_for_no_mutex_that_another_thread_had(site: Site) -> None:
    program = """
from contextlib import ExitStack
hold = lock.acquire()
core, host = client._runner.core, client._runner._host
mutexes = [core.mutex, core.tickets._mutex, core.watches._mutex, core.pools._mutex]
mutexes += [core.sessions.outages._mutex, host._counting, host._starting]
locked, over = threading.Event(), threading.Event()
def lock_all():
    with ExitStack() as every:
        for mutex in mutexes:
            every.enter_context(mutex)
        locked.set()
        over.wait()
threading.Thread(target=lock_all).start()
locked.wait()
pid = os.fork()
if pid == 0:
    say(hold.state, lock.try_acquire())
    client.close()
    os._exit(0)
over.set()
for _ in range(500):
    if os.waitpid(pid, os.WNOHANG) != (0, 0):
        break
    time.sleep(0.02)
else:
    os.kill(pid, signal.SIGKILL)
say(hold.verify())
"""
    assert programs.run(program, site) == ["lost None", "True"]
    assert site.left_behind() == []


def test_a_child_forked_with_no_descriptor_left_does_not_believe_in_its_parents_hold(site: Site) -> None:
    program = """
import resource
hold = lock.acquire()
while not client._runner._transport.pool.has_query():
    time.sleep(0.01)
before = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, before[1]))
taken = []
try:
    while True:
        taken.append(os.dup(0))
except OSError:
    pid = os.fork()
for descriptor in taken:
    os.close(descriptor)
if pid == 0:
    say(hold.state)
    os._exit(0)
_, status = os.waitpid(pid, 0)
say(status, hold.verify(), hold.release())
"""
    assert programs.run(program, site) == ["lost", "0 True released"]
    assert site.left_behind() == []


def test_a_client_of_several_agents_that_is_closed_in_a_child_leaves_no_connection(site: Site) -> None:
    program = """
import asyncio
client = AsyncClient([ADDRESS, "http://127.0.0.1:1"])
def sockets():
    paths = (f"/proc/self/fd/{entry}" for entry in os.listdir("/proc/self/fd"))
    return sum(os.path.islink(path) and os.readlink(path).startswith("socket:") for path in paths)
async def use():
    async with client:
        await client.status.leader()
        during = sockets()
    return during - sockets()
asyncio.run(client.status.leader())
pid = os.fork()
if pid == 0:
    say(asyncio.run(use()))
else:
    os.waitpid(pid, 0)
os._exit(0)
"""
    assert programs.run(program, site) == ["1"]


def test_a_child_does_not_send_over_a_connection_that_its_parents_background_has(site: Site) -> None:
    """With several agents, of which the calls have not used this one so far."""
    program = """
from consul_coord.http.endpoints import status
client = Client(["http://127.0.0.1:1", ADDRESS])
async def ask(io):
    await io.send(status.leader().request, deadline=io.now() + 5.0)
asked = client._runner._host.spawn(ask, name="a renewal, say").done
while not asked.is_set():
    time.sleep(0.01)
pool = client._runner._transport._fleet._pools[ADDRESS]
parents = {link.sock.getsockname() for link in pool.idle}
if pid := os.fork():
    os.waitpid(pid, 0)
client.status.leader()
say(len(parents), parents == {link.sock.getsockname() for link in pool.idle})
os._exit(0)
"""
    assert programs.run(program, site) == ["1 False", "1 True"]


@pytest.mark.parametrize(("used", "answer"), [(True, "refused"), (False, "answered")])
def test_a_child_does_not_send_over_its_parents_connection_of_a_users_client(
    site: Site, used: bool, answer: str
) -> None:
    """Each of them would get the replies of the other one."""
    program = f"""
import httpx
calls, background = httpx.Client(trust_env=False), httpx.AsyncClient(trust_env=False)
client = Client(ADDRESS, http_client=calls, background_http_client=background)
if {used}:
    client.status.leader()
if pid := os.fork():
    os.waitpid(pid, 0)
try:
    client.status.leader()
except ConfigError as error:
    say("refused" if "before this process was forked" in str(error) else error)
else:
    say("answered")
os._exit(0)
"""
    assert programs.run(program, site) == [answer, "answered"]
    assert site.left_behind() == []


def test_a_fork_in_the_midst_of_waiting_threads_disturbs_nobody(site: Site) -> None:
    program = """
hold = lock.acquire()
results = []
waiter = threading.Thread(target=lambda: results.append(lock.acquire(timeout=10)))
waiter.start()
while len(client._runner.core.tickets.queue(KEY)) < 2:
    time.sleep(0.005)
pid = os.fork()
if pid == 0:
    os._exit(0 if hold.state == "lost" else 1)
_, status = os.waitpid(pid, 0)
hold.release()
waiter.join()
say(status, results[0].verify(), results[0].fence > hold.fence)
"""
    assert programs.run(program, site) == ["0 True True"]
    assert site.left_behind() == []


def test_a_process_that_was_stopped_past_its_lease_does_not_believe_in_it(
    site: Site, make_client: MakeClient
) -> None:
    program = """
short = SessionSpec(ttl=0.5, lock_delay=0, name=NAME, allow_unbounded=True)
hold = Lock(client, KEY, session=short).acquire()
say(hold.fence)
while True:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    held, requests = hold.is_held, client.stats().requests
    after = time.clock_gettime(time.CLOCK_BOOTTIME)
    # The first look that began after the deadline, whatever happened between.
    if before > hold.deadline():
        say(held, hold.reason)
        break
    if held and after - before > 1:
        continue
"""
    process = programs.start(program, site)
    fence = int(process.stdout.readline())
    process.send_signal(signal.SIGSTOP)
    stat = Path(f"/proc/{process.pid}/stat")
    eventually(lambda: stat.read_text(encoding="ascii").rpartition(")")[2].split()[0] == "T")
    # The other one gets it while the first is stopped: its session has ended by itself.
    with Lock(make_client(), site.key).hold(timeout=5) as other:
        assert other.fence > fence
        process.send_signal(signal.SIGCONT)
        out = programs.finish(process)
        assert out[0].startswith("False ")
        assert other.verify()


@pytest.mark.usefixtures("held")
def test_a_waiter_that_is_killed_is_passed_over(site: Site, make_client: MakeClient) -> None:
    program = """
short = SessionSpec(ttl=0.5, lock_delay=0, name=NAME, allow_unbounded=True)
Lock(client, KEY, session=short).acquire()
"""
    process = programs.start(program, site)
    eventually(lambda: site.operator.under(f"{site.key}/.wait/"), within=20)
    process.kill()
    process.communicate()
    lock = Lock(make_client(), site.key)
    eventually(lambda: lock.contenders() == (), within=8)  # a session of 10 s would last longer


NO_THREADS = """
import atexit
def refuse(thread):
    raise RuntimeError("can't create new thread at interpreter shutdown")
atexit.register(setattr, threading.Thread, "start", refuse)
"""


@pytest.mark.parametrize("how", ["simulated", "by this interpreter"])
def test_an_exit_that_allows_no_new_thread_releases_and_tells(site: Site, how: str) -> None:
    program = f"""
{NO_THREADS if how == "simulated" else ""}
class Observer:
    def on_event(self, event):
        if type(event).__name__ == "Released":
            say("released")
spec = SessionSpec(ttl=10, lock_delay=0, name=NAME, allow_unbounded=True)
observed = Client(address=ADDRESS, session=spec, observer=Observer())
hold, other = lock.acquire(), Lock(observed, KEY + "2").acquire()
hold.on_lost(say)
"""
    assert sorted(programs.run(program, site)) == ["client_closed", "released"]
    assert site.left_behind() == []


def test_at_the_exit_a_client_that_fails_keeps_no_other_from_closing(site: Site) -> None:
    program = """
spec = SessionSpec(ttl=10, lock_delay=0, name=NAME, allow_unbounded=True)
others = [Client(address=ADDRESS, session=spec) for _ in range(4)]
holds = [Lock(other, KEY + str(number)).acquire() for number, other in enumerate(others)]
broken = Client(address=ADDRESS)
def fail(): raise ValueError("made up")
broken._runner._transport.close = fail
"""
    process = programs.start(program, site)
    _, err = process.communicate(timeout=programs.TIMEOUT)
    assert err.rstrip().endswith("ValueError: made up")
    assert site.left_behind() == []
