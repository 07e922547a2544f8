"""Real processes that wait for one lock on one agent: connections, memory and CPU of each, and who is served.

Rules
- Five locks are held beside the waiting processes, each by a client of its own. A loss is counted.
- Ours are Python processes, each with one ``Client``. Some ``consul lock`` and Go clients wait beside them,
  for a lock of their own.
- Connections are counted several times, as the kernel knows them of each process.
- At the end the keeper gives the lock back, and each process of ours holds it for a moment.
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
from bench.results import Figure, Outcome, Skipped, Spread
from consul_coord import Client, Lock
from consul_coord.testing.binary import find_consul

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from bench.bed import Bed

HOLDERS = 5
SETTLING = 8.0
"""Seconds until what comes with the start of the last process is over."""
PATIENCE = 120.0
BARE = "Python with asyncio, json and ssl"
CONNECTIONS = "connections of each"
MEMORY = "resident memory of each"
ABOVE = f"{MEMORY}, above that of {BARE}"
NOT_SERVED = "not served"
LOST = "holds lost"
ESTABLISHED = "01"
OURS = """
import sys
from consul_coord import Client, Lock

with Client(address=sys.argv[1]) as client:
    with Lock(client, sys.argv[2]).hold(timeout=600):
        pass
    print("served", client.stats().lost, flush=True)
"""


def run(bed: Bed) -> Outcome:
    """Have the processes wait, look at them for a while, and let ours have the lock."""
    size, others, window = (
        bed.pick(full=150, quick=4),
        bed.pick(full=5, quick=1),
        bed.pick(full=90.0, quick=2.0),
    )
    figures: list[Figure] = []
    skipped: list[Skipped] = []
    with ExitStack() as stack:
        holds = [
            stack.enter_context(Lock(stack.enter_context(Client(address=bed.address)), bed.key()))
            for _ in range(HOLDERS)
        ]
        key = bed.key()
        keeper = stack.enter_context(Client(address=bed.address))
        lock = Lock(keeper, key)
        wanted = lock.acquire()
        ours = [stack.enter_context(_ours(bed, key)) for _ in range(size)]
        pids = {"ours": [process.pid for process in ours], BARE: [stack.enter_context(_bare())]}
        kinds: dict[str, Callable[[Bed, str], AbstractContextManager[int]]] = {
            "Go api.Lock": _go,
            "consul lock": _cli,
        }
        for name, start in kinds.items():
            other = bed.key()
            stack.enter_context(Lock(keeper, f"{other}/.lock" if start is _cli else other))
            try:
                pids[name] = [stack.enter_context(start(bed, other)) for _ in range(others)]
            except Unavailable as error:
                skipped.append(Skipped(name, str(error)))
        until = time.monotonic() + PATIENCE
        while len(lock.contenders()) < size and time.monotonic() < until:
            time.sleep(1.0)
        time.sleep(SETTLING)
        figures += _look(bed, pids, window)
        memory = {figure.contender: figure.value.median for figure in figures if figure.what == MEMORY}
        figures.append(_figure("ours", ABOVE, "KiB", memory["ours"] - memory[BARE]))
        began = time.monotonic()
        wanted.release()
        told = [process.communicate(timeout=PATIENCE)[0].split() for process in ours]
        served = [int(words[1]) for words in told if words[:1] == ["served"]]
        figures += [
            _figure("ours", "until all have had it", "s", time.monotonic() - began),
            _figure("ours", NOT_SERVED, "", size - len(served)),
            _figure("ours", LOST, "", sum(served) + sum(not hold.is_held for hold in holds)),
        ]
    return Outcome(
        measure="fleet",
        title="A fleet that waits on one agent",
        figures=tuple(figures),
        skipped=tuple(skipped),
        notes=(
            f"{size} processes of ours wait for one lock, and {others} of each other kind for another one.",
            f"{HOLDERS} locks are held beside them. Looked at for {window:.0f} s, with default settings.",
        ),
    )


@contextmanager
def _ours(bed: Bed, key: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", OURS, bed.address, key]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - our own
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
    command = [str(binary), "lock", f"-http-addr={bed.host}:{bed.port}", key, "true"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:  # noqa: S603
        try:
            yield process.pid
        finally:
            process.kill()


def _look(bed: Bed, pids: Mapping[str, Sequence[int]], window: float) -> Iterator[Figure]:
    """Look at the processes of each kind for a while."""
    before = {pid: _cpu(pid) for some in pids.values() for pid in some}
    counted: dict[str, list[float]] = {name: [] for name in pids}
    began = time.monotonic()
    while time.monotonic() < began + window:
        for name, some in pids.items():
            counted[name].append(_connections(bed.port, some) / len(some))
        time.sleep(window / 20)
    minutes = (time.monotonic() - began) / 60
    for name, some in pids.items():
        used = [_cpu(pid) - before[pid] for pid in some]
        memory = [kib for pid in some if (kib := _memory(pid))]
        yield _figure(name, "ended before their turn", "", len(some) - len(memory))
        yield Figure(contender=name, what=CONNECTIONS, unit="", value=Spread.of(counted[name]))
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
