"""Real processes on one agent: connections, requests, memory and CPU of each by its role, and who is served.

Rules
- Most are Python processes of ours that wait for one lock, each with one ``Client``. Some of them, and those
  in each other role, talk to the agent through a proxy that counts their role's requests.
- Go clients and ``consul lock`` wait and hold beside them, for locks of their own.
- Connections are counted several times, as the kernel knows them of each process.
- At the end the keeper gives the lock back, and each waiting process of ours holds it for a moment. Holds
  that were lost are counted, and processes that ended before their turn.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from bench.bed import Unavailable
from bench.contenders.go_client import go_peer
from bench.counting import counting_proxy
from bench.results import Figure, Outcome, Skipped, Spread
from consul_coord import Client, Lock
from consul_coord.testing.binary import find_consul

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

    from bench.bed import Bed
    from bench.counting import Counts

STARTED = 65.0
"""Seconds after which what comes with the start of a process is over: a semaphore's spare session, say."""
SETTLING = 8.0
"""The same after the start of the last process that waits for the lock."""
PATIENCE = 120.0
BARE = "Python with asyncio, json and ssl"
CONNECTIONS = "connections of each"
REQUESTS = "requests a minute of each"
MEMORY = "resident memory of each"
ABOVE = f"{MEMORY}, above that of {BARE}"
NOT_SERVED = "not served"
LOST = "holds lost"
WAITS = "ours"
"""The many processes that wait for one lock."""
ROLES = {
    "ours, waits": "lock",
    "ours, holds": "lock",
    "ours, waits for a permit": "permit",
    "ours, holds a permit": "permit",
    "ours, stands for election": "election",
    "ours, leads": "election",
    "ours, has released": "lock",
}
"""The roles of which a few processes have their requests counted, and what each is about."""
REQUESTS_AT_MOST = {
    "ours, waits": 1.5 * 13.4,
    "ours, holds": 1.5 * 13.4,
    "ours, waits for a permit": 1.5 * 13.4,
    "ours, holds a permit": 1.5 * 15.4,
    "ours, stands for election": 1.5 * 13.4,
    "ours, leads": 1.5 * 13.4,
}
"""1.5 times what each sent, by count, while it had a connection for each query and one for its renewals."""
ESTABLISHED = "01"
OURS = """
import sys
import consul_coord  # whose names are loaded when they are used

address, kind, key, stays = sys.argv[1:]
with consul_coord.Client(address=address) as client:
    if kind == "election":
        with consul_coord.LeaderElection(client, key):
            sys.stdin.read()
    else:
        what = consul_coord.Lock(client, key) if kind == "lock" else consul_coord.Semaphore(client, key, 1)
        with what.hold(timeout=600):
            if stays == "holding":
                sys.stdin.read()
        if stays == "idle":
            sys.stdin.read()
    print("served", client.stats().lost, flush=True)
"""


class Fleet:
    """The processes, by their roles, and what passes the proxies of those whose requests are counted."""

    def __init__(self, bed: Bed, stack: ExitStack) -> None:
        self.bed = bed
        self._stack = stack
        self.pids: dict[str, list[int]] = {}
        self.counts: dict[str, Counts] = {}
        self.beds: dict[str, Bed] = {}
        self.skipped: list[Skipped] = []

    def counted(self, role: str) -> Bed:
        """Return the agent behind the proxy that counts a role's requests."""
        if role not in self.beds:
            self.beds[role], self.counts[role] = self._stack.enter_context(counting_proxy(self.bed))
        return self.beds[role]

    def ours(self, role: str, bed: Bed, kind: str, key: str, stays: str) -> subprocess.Popen[str]:
        """Add a process of ours."""
        process = self._stack.enter_context(_ours(bed, kind, key, stays))
        self.pids.setdefault(role, []).append(process.pid)
        return process

    def few(self, size: int) -> tuple[list[subprocess.Popen[str]], str]:
        """Add a few of ours in each other role; return those that hold something, and a key for the many."""
        holding: list[subprocess.Popen[str]] = []
        wanted = {kind: self.bed.key() for kind in ("permit", "election")}
        for role, kind in ROLES.items():
            if role == "ours, waits":
                continue
            waits = role in {"ours, waits for a permit", "ours, stands for election"}
            if waits:  # for what another process has
                holding.append(self.ours("besides", self.bed, kind, wanted[kind], "holding"))
                time.sleep(1.0)
            for _ in range(size):
                key = wanted[kind] if waits else self.bed.key()
                stays = "idle" if role == "ours, has released" else "holding"
                process = self.ours(role, self.counted(role), kind, key, stays)
                if stays == "holding" and not waits:
                    holding.append(process)
        return holding, self.bed.key()

    def others(self, size: int) -> None:
        """Add a few of each other client, that hold a lock and that wait for it."""
        kinds: dict[str, Callable[[Bed, str], AbstractContextManager[int]]] = {
            "Go api.Lock": _go,
            "consul lock": _cli,
        }
        for name, start in kinds.items():
            keys = [self.bed.key() for _ in range(size)]
            try:
                for role in (f"{name}, holds", f"{name}, waits"):
                    bed = self.counted(role)
                    self.pids[role] = [self._stack.enter_context(start(bed, key)) for key in keys]
                    time.sleep(1.0)  # until those that hold have it
            except Unavailable as error:
                self.skipped.append(Skipped(name, str(error)))


def run(bed: Bed) -> Outcome:
    """Have the processes wait, look at them for a while, and let ours have the lock."""
    size, few, window = bed.pick(full=150, quick=4), bed.pick(full=3, quick=1), bed.pick(full=90.0, quick=2.0)
    figures: list[Figure] = []
    with ExitStack() as stack:
        fleet = Fleet(bed, stack)
        began = time.monotonic()
        holding, key = fleet.few(few)
        fleet.others(bed.pick(full=2, quick=1))
        keeper = stack.enter_context(Client(address=bed.address))
        lock = Lock(keeper, key)
        wanted = lock.acquire()
        ours = [fleet.ours("ours, waits", fleet.counted("ours, waits"), "lock", key, "") for _ in range(few)]
        ours += [fleet.ours(WAITS, bed, "lock", key, "") for _ in range(size - few)]
        fleet.pids[BARE] = [stack.enter_context(_bare())]
        until = time.monotonic() + PATIENCE
        while len(lock.contenders()) < size and time.monotonic() < until:
            time.sleep(1.0)
        time.sleep(max(SETTLING, began + bed.pick(full=STARTED, quick=0.0) - time.monotonic()))
        fleet.pids.pop("besides")
        figures += _look(fleet, window)
        memory = {figure.contender: figure.value.median for figure in figures if figure.what == MEMORY}
        figures.append(_figure(WAITS, ABOVE, "KiB", memory[WAITS] - memory[BARE]))
        began = time.monotonic()
        wanted.release()
        told = [process.communicate(timeout=PATIENCE)[0].split() for process in ours]
        took = time.monotonic() - began
        # Those that hold something end when their input does.
        told_by_holders = [process.communicate(timeout=PATIENCE)[0].split() for process in holding]
        served = [words for words in told if words[:1] == ["served"]]
        kept = [words for words in told_by_holders if words[:1] == ["served"]]
        figures += [
            _figure(WAITS, "until all have had it", "s", took),
            _figure(WAITS, "handoffs a second", "", size / took),
            _figure(WAITS, NOT_SERVED, "", size - len(served) + len(holding) - len(kept)),
            _figure(WAITS, LOST, "", sum(int(words[1]) for words in (*served, *kept))),
        ]
    return Outcome(
        measure="fleet",
        title="A fleet that waits on one agent",
        figures=tuple(figures),
        skipped=tuple(fleet.skipped),
        notes=(
            f"{size} processes of ours wait for one lock. Beside them are {few} of ours in each other role.",
            "A few Go clients and `consul lock` hold and wait beside them.",
            f"Requests are counted for {few} processes of each role, behind proxies.",
            f"Looked at for {window:.0f} s, with default settings.",
        ),
    )


@contextmanager
def _ours(bed: Bed, kind: str, key: str, stays: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", OURS, bed.address, kind, key, stays]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:  # noqa: S603 - our own
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def _bare() -> Iterator[int]:
    command = [sys.executable, "-c", "import asyncio, json, ssl; print(); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:  # noqa: S603 - our own
        if process.stdout is not None:
            process.stdout.readline()  # until it has imported them
        try:
            yield process.pid
        finally:
            process.kill()


@contextmanager
def _go(bed: Bed, key: str) -> Iterator[int]:
    with go_peer(bed) as peer:
        peer.ask(f"wait {key}")
        yield peer.pid


@contextmanager
def _cli(bed: Bed, key: str) -> Iterator[int]:
    binary = find_consul()
    if binary is None:
        message = "there is no Consul binary here"
        raise Unavailable(message)
    command = [str(binary), "lock", "-pass-stdin", f"-http-addr={bed.host}:{bed.port}", key, "cat"]
    nothing, pipe = subprocess.DEVNULL, subprocess.PIPE  # the holder's command ends with its input
    with subprocess.Popen(command, stdin=pipe, stdout=nothing, stderr=nothing) as process:  # noqa: S603
        try:
            yield process.pid
        finally:
            process.kill()


def _look(fleet: Fleet, window: float) -> Iterator[Figure]:
    """Look at the processes of each role for a while."""
    pids = fleet.pids
    before = {pid: _cpu(pid) for some in pids.values() for pid in some}
    sent = {name: len(counts.seen) for name, counts in fleet.counts.items()}
    counted: dict[str, list[float]] = {name: [] for name in pids}
    began = time.monotonic()
    while time.monotonic() < began + window:
        for name, some in pids.items():
            port = fleet.beds.get(name, fleet.bed).port
            counted[name].append(_connections(port, some) / len(some))
        time.sleep(window / 20)
    minutes = (time.monotonic() - began) / 60
    requests = {name: len(fleet.counts[name].seen) - sent[name] for name in sent}
    for name, some in pids.items():
        used = [_cpu(pid) - before[pid] for pid in some]
        memory = [kib for pid in some if (kib := _memory(pid))]
        yield _figure(name, "ended before their turn", "", len(some) - len(memory))
        yield Figure(contender=name, what=CONNECTIONS, unit="", value=Spread.of(counted[name]))
        if name in requests:
            yield _figure(name, REQUESTS, "", requests[name] / len(some) / minutes)
        yield Figure(
            contender=name, what="CPU a minute", unit="ms", value=Spread.of(used, scale=1000 / minutes)
        )
        yield Figure(contender=name, what=MEMORY, unit="KiB", value=Spread.of(memory))


def _figure(name: str, what: str, unit: str, value: float) -> Figure:
    return Figure(contender=name, what=what, unit=unit, value=Spread.of([value]))


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory(pid: int) -> float:
    """Return its resident memory, 0 when it has ended."""
    rows = Path(f"/proc/{pid}/status").read_text("ascii").splitlines()
    return next((float(row.split()[1]) for row in rows if row.startswith("VmRSS")), 0.0)


def _connections(port: int, pids: Iterable[int]) -> int:
    """Return how many connections these processes have open to a port."""
    own: set[str] = set()
    for pid in pids:
        try:
            entries = list(Path(f"/proc/{pid}/fd").iterdir())
        except OSError:  # ended
            continue
        for entry in entries:
            with suppress(OSError):  # closed meanwhile
                own.add(str(entry.readlink()))
    rows = [line.split() for line in Path("/proc/net/tcp").read_text("ascii").splitlines()[1:]]
    return sum(
        row[3] == ESTABLISHED and int(row[2].partition(":")[2], 16) == port and f"socket:[{row[9]}]" in own
        for row in rows
    )
