"""The official Go client's ``api.Lock`` and ``api.Semaphore``, in a program of its own (``peers/go``)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from bench.bed import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.bed import Bed
    from bench.contenders.pairs import Pairs

_SOURCE = Path(__file__).parent.parent / "peers" / "go"
_BUILD_TIMEOUT = 300.0
_SHOWN = 200


class GoPeer:
    """The running program: one line to it, one line of times back."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._input = cast("IO[str]", process.stdin)
        self._output = cast("IO[str]", process.stdout)
        self.pid = process.pid

    def ask(self, command: str) -> Sequence[float]:
        """Return the times that a command took, in seconds. Raises RuntimeError when it failed."""
        self._input.write(f"{command}\n")
        self._input.flush()
        answer = json.loads(self._output.readline() or '{"error": "it ended"}')
        if "error" in answer:
            message = f"the Go client, told to {command!r}: {answer['error']}"
            raise RuntimeError(message)
        return cast("list[float]", answer["seconds"])


@contextmanager
def go_peer(bed: Bed) -> Iterator[GoPeer]:
    """Run the program for a while, building it first if this run has not. Raises Unavailable."""
    binary = _build(bed.folder)
    if isinstance(binary, Unavailable):
        raise binary
    with subprocess.Popen(  # noqa: S603 - our own program
        [binary],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "CONSUL_HTTP_ADDR": f"{bed.host}:{bed.port}"},
    ) as process:
        try:
            yield GoPeer(process)
        finally:
            process.kill()


@cache
def _build(folder: Path) -> Path | Unavailable:
    """Build into the run's folder. What fails once is not tried again: it may have taken minutes."""
    go = shutil.which("go")
    if go is None:
        return Unavailable("Go is not installed")
    binary = folder / "go-peer"
    try:
        subprocess.run(  # noqa: S603 - the user's own Go, on our own source
            [go, "build", "-o", binary, "."],
            cwd=_SOURCE,
            check=True,
            capture_output=True,
            text=True,
            timeout=_BUILD_TIMEOUT,
        )
    except subprocess.CalledProcessError as error:
        return Unavailable(f"it can't be built: {str(error.stderr).strip()[:_SHOWN]}")
    except subprocess.TimeoutExpired:
        return Unavailable(f"it could not be built in {_BUILD_TIMEOUT:.0f} s")
    return binary


@dataclass(frozen=True, slots=True)
class GoPairs:
    """``Lock`` and ``Unlock``, or ``Acquire`` and ``Release``."""

    name: str
    command: str

    @contextmanager
    def open(self, bed: Bed) -> Iterator[Pairs]:
        """Start the program."""
        with go_peer(bed) as peer:
            key = bed.key()
            yield lambda count: peer.ask(f"{self.command} {key} {count}")


GO_GIVEN = GoPairs("Go api.Lock, session given", "given")
GO_OWN = GoPairs("Go api.Lock, session of its own", "own")
GO_SLOT_GIVEN = GoPairs("Go api.Semaphore, session given", "slot-given")
GO_SLOT_OWN = GoPairs("Go api.Semaphore, session of its own", "slot-own")
