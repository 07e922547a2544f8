"""The interpreter behind `tests.support.programs`: it imports the package once, and forks for each program.

    python prepared.py DESCRIPTOR

Rules
- It reads requests from the socket with this descriptor, and ends when the other end is closed. A request
  brings the program's standard streams, and a socket on which its process id and its exit code are reported.
- It has no thread and no client: a forked program starts as if it had done the imports itself.
- A program runs in ``__main__``, at the bottom of the main thread, and ends as in any other interpreter.
"""

from __future__ import annotations

import builtins
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import types
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

PACKAGES = ("consul_coord.aio", "consul_coord.sync", "consul_coord.server", "anyio._backends._asyncio")
LONGEST = 1 << 20
"""Bytes of a request at most."""


def prepare() -> None:
    """Import what most programs need."""
    for name in PACKAGES:
        importlib.import_module(name)
    from consul_coord.cli import app

    for name in app.VERBS:
        app.verb(name)
    gc.collect()
    gc.freeze()


def serve(requests: socket.socket) -> dict[str, Any] | None:
    """Fork for each request. Return it in the child, and None here, once nobody can send another."""
    running: dict[int, socket.socket] = {}
    woken, waking = os.pipe()
    os.set_blocking(waking, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waking)
    while True:
        ready, _, _ = select.select([requests.fileno(), woken], [], [])
        if woken in ready:
            os.read(woken, 512)
            report_ends(running)
        if requests.fileno() not in ready:
            continue
        data, streams, _, _ = socket.recv_fds(requests, LONGEST, 4)
        if not data:
            return None
        reports = socket.socket(fileno=streams.pop())
        if (pid := os.fork()) == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for each in (requests, reports, *running.values()):
                each.close()
            os.close(woken)
            os.close(waking)
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
                os.close(stream)
            found: dict[str, Any] = json.loads(data)
            return found
        for stream in streams:
            os.close(stream)
        running[pid] = reports
        with suppress(OSError):
            reports.send(b"%d" % pid)


def report_ends(running: dict[int, socket.socket]) -> None:
    """Report the exit codes of the programs that have ended."""
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with running.pop(pid) as reports, suppress(OSError):  # nobody may want to know any more
            reports.send(b"%d" % os.waitstatus_to_exitcode(status))


def run(arguments: list[str], *, cwd: str, env: dict[str, str], own_group: bool, ignored: list[int]) -> None:
    """Be the program: ``-m MODULE``, ``-c CODE`` or a file, after ``-W error`` or not."""
    if own_group:
        os.setpgid(0, 0)
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    if arguments[:2] == ["-W", "error"]:
        warnings.simplefilter("error")
        # As for tests: what becomes of a child that is forked beside other threads is what they are about.
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
        sys.warnoptions.append("error")
        arguments = arguments[2:]
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    match arguments:
        case ["-m", name, *rest]:
            sys.argv, sys.path[0] = ["-m", *rest], cwd
            runpy._run_module_as_main(name)  # type: ignore[attr-defined]
        case ["-c", code, *rest]:
            sys.argv, sys.path[0] = ["-c", *rest], ""
            exec(compile(code, "<string>", "exec"), module.__dict__)
        case [file, *_]:
            sys.argv, sys.path[0] = arguments, str(Path(file).resolve().parent)
            module.__file__ = file
            exec(compile(Path(file).read_bytes(), file, "exec"), module.__dict__)


if __name__ == "__main__":
    prepare()
    sys.modules["prepared"] = sys.modules[
        "__main__"
    ]  # stays, while the program has a ``__main__`` of its own
    if (wanted := serve(socket.socket(fileno=int(sys.argv[1])))) is not None:
        run(**wanted)
