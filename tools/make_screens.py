"""Make the screens of the command line that the documentation shows, in docs/pictures.

    python tools/make_screens.py [NAME...]

Rules
- A screen is what a real terminal (tmux) showed of the real command, on a reference server with a scene on
  it; nothing is drawn by hand. Times, sessions and process ids are those of that run.
- Each is made in two sizes, and each size twice: NAME-80x24.txt, to be read everywhere, and NAME-80x24.svg,
  with its colours. A command that prints more than a screen is shown whole.
- A picture loads nothing from elsewhere: it names no fonts but the reader's own.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.text import Text

from consul_coord import AcquireCancelled, Client, LeaderElection, Lock, Semaphore, SessionSpec
from consul_coord.server import AclConfig, ReferenceServer, Rule, ServerConfig, Token

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
PORT = 8500
"""The one that readers know."""
SIZES = ((80, 24), (120, 40))
PATIENCE = 60.0
TOKEN = "a-token-for-the-picture"  # noqa: S105 - of a server that lives for seconds

_NUMBERS = itertools.count()
_END = "the-end-of-the-command"
_FONT_FACE = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
_GENERATOR = re.compile(r"<!-- Generated with .*?-->\s*")


class Terminal:
    """A command at a terminal of its own; a context manager."""

    def __init__(self, cells: tuple[int, int], *arguments: str, **environ: str) -> None:
        width, height = cells
        settings = {name: value for name, value in os.environ.items() if not name.startswith("CONSUL_")}
        self._socket = f"make-screens-{os.getpid()}-{next(_NUMBERS)}"
        command = shlex.join([sys.executable, "-m", "consul_coord", *arguments])
        self._environ = settings | environ
        size = ("-x", str(width), "-y", str(height))
        self._tmux("-f", "/dev/null", "new-session", "-d", *size, f"{command}; echo {_END}; exec sleep 60")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._tmux("kill-server")

    def wait_for(self, pattern: str) -> str:
        """Return the screen, with its colours, once it shows something."""
        deadline = time.monotonic() + PATIENCE
        while not re.search(pattern, screen := self._tmux("capture-pane", "-p", "-S", "-")):
            if time.monotonic() > deadline:
                raise SystemExit(f"{pattern!r} did not come: {screen}")
            time.sleep(0.1)
        return self._tmux("capture-pane", "-p", "-e", "-S", "-")

    def end(self) -> str:
        """Return all that the command has written by its end."""
        return self.wait_for(_END).rpartition(_END)[0]

    def _tmux(self, *arguments: str) -> str:
        done = subprocess.run(  # noqa: S603 - with arguments from here
            ["tmux", "-L", self._socket, *arguments],  # noqa: S607 - wherever it is installed
            env=self._environ | {"TERM": "xterm-256color"},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout


@contextlib.contextmanager
def scene(address: str) -> Iterator[None]:
    """Have a lock that others wait for, two permits of a semaphore, and a leader."""
    with contextlib.ExitStack() as stack:

        def client(name: str) -> Client:
            return stack.enter_context(Client(address=address, session=SessionSpec(name=name)))

        web, reports = client("web-1"), client("reports")
        stack.enter_context(Lock(web, "jobs/nightly", value="web-1:4711").hold())
        for waiting in (client("web-2"), client("web-3")):
            stack.enter_context(wanted(Lock(waiting, "jobs/nightly")))
        for value in ("db-1", "db-2"):
            stack.enter_context(Semaphore(web, "jobs/backups", 3, value=value).hold())
        election = stack.enter_context(LeaderElection(reports, "jobs/reports/leader", value="10.0.0.5:80"))
        election.wait_for_leadership(timeout=PATIENCE)
        election.proclaim("10.0.0.5:8080")
        yield


@contextlib.contextmanager
def wanted(lock: Lock) -> Iterator[None]:
    """Wait for a lock meanwhile."""

    def wait() -> None:
        with contextlib.suppress(AcquireCancelled):
            lock.acquire()

    waiter = threading.Thread(target=wait)
    waiter.start()
    try:
        yield
    finally:
        lock.cancel()
        waiter.join()


def demo(size: tuple[int, int]) -> str:
    """Show the demonstration."""
    with Terminal(size, "demo") as terminal:
        return terminal.end()


def holders(size: tuple[int, int]) -> str:
    """Show who holds and who waits."""
    with (
        ReferenceServer(port=PORT) as server,
        scene(server.address),
        Terminal(size, "holders", "jobs/", CONSUL_HTTP_ADDR=server.address) as terminal,
    ):
        return terminal.end()


def top(size: tuple[int, int]) -> str:
    """Show the live table."""
    with (
        ReferenceServer(port=PORT) as server,
        Terminal(size, "top", "jobs/", CONSUL_HTTP_ADDR=server.address) as terminal,
    ):
        terminal.wait_for("0 held")
        with scene(server.address):
            return terminal.wait_for(r"leads .* [3-9]s")


def doctor(size: tuple[int, int]) -> str:
    """Show what is found with a token that lacks something."""
    rules = (
        Rule("session", "node1", "write"),
        Rule("node", "node1", "read"),
        Rule("agent", "node1", "read"),
        Rule("key", "service/reports", "write"),
    )
    config = ServerConfig(acl=AclConfig(tokens={TOKEN: Token(rules)}))
    with ReferenceServer(port=PORT, config=config) as server:
        environ = {"CONSUL_HTTP_ADDR": server.address, "CONSUL_HTTP_TOKEN": TOKEN}
        with Terminal(size, "doctor", "service/reports", **environ) as terminal:
            return terminal.end()


SCREENS: dict[str, tuple[str, Callable[[tuple[int, int]], str]]] = {
    "demo": ("consul-coord demo", demo),
    "holders": ("consul-coord holders jobs/", holders),
    "doctor": ("consul-coord doctor service/reports", doctor),
    "top": ("consul-coord top jobs/", top),
}
"""By name: what a reader would type, and what then shows."""


def drawn(screen: str, *, title: str, name: str) -> tuple[str, str]:
    """Return a screen as plain text and as a picture."""
    text = Text.from_ansi(screen.replace("\r\n", "\n").strip("\n"))
    lines = [line.rstrip() for line in text.plain.splitlines()]
    while lines and not lines[-1]:
        lines.pop()
    width = max(map(len, lines))
    text = Text("\n").join(text.split("\n")[: len(lines)])
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True, color_system="256")
    console.print(text, soft_wrap=False, no_wrap=True, crop=True)
    picture = console.export_svg(title=title, unique_id=name)
    picture = _GENERATOR.sub("", _FONT_FACE.sub("", picture)).replace("Fira Code", "monospace")
    return "\n".join(lines) + "\n", picture


def main(names: list[str]) -> int:
    """Run as a program; return the exit status."""
    unknown = set(names) - set(SCREENS)
    if unknown:
        print(f"there is no {', '.join(sorted(unknown))}, only {', '.join(SCREENS)}", file=sys.stderr)
        return 2
    PICTURES.mkdir(exist_ok=True)
    for name in names or SCREENS:
        title, make = SCREENS[name]
        for width, height in SIZES:
            file = f"{name}-{width}x{height}"
            plain, picture = drawn(make((width, height)), title=title, name=file)
            (PICTURES / f"{file}.txt").write_text(plain, encoding="utf-8")
            (PICTURES / f"{file}.svg").write_text(picture, encoding="utf-8")
            print(f"docs/pictures/{file}.txt, docs/pictures/{file}.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
