"""Draw the screens of the command line that the documentation shows, into docs/pictures.

    python tools/make_screens.py [NAME...]

Rules
- A screen is what the real command wrote to a terminal of its own, on a reference server with a scene on it;
  nothing is drawn by hand. Times, sessions and process ids are those of that run.
- Each is made twice: NAME.txt, to be read everywhere, and NAME.svg, with its colours.
- A picture loads nothing from elsewhere: it names no fonts but the reader's own.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from consul_coord import AcquireCancelled, Client, LeaderElection, Lock, Semaphore, SessionSpec
from consul_coord.server import AclConfig, ReferenceServer, Rule, ServerConfig, Token

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
PORT = 8500
"""The one that readers know."""
WIDTH, HEIGHT = 132, 24
PATIENCE = 60.0
TOKEN = "a-token-for-the-picture"  # noqa: S105 - of a server that lives for seconds

_HOME = "\x1b[H"
_LEAVE = "\x1b[?1049l"
_FONT_FACE = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
_GENERATOR = re.compile(r"<!-- Generated with .*?-->\s*")


class Terminal:
    """A program at a terminal of its own."""

    def __init__(self, *arguments: str, environ: dict[str, str] | None = None) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, WIDTH, 0, 0))
        settings = {name: value for name, value in os.environ.items() if not name.startswith("CONSUL_")}
        self._process = subprocess.Popen(  # noqa: S603 - this package, with arguments from here
            [sys.executable, "-m", "consul_coord", *arguments],
            env=settings | {"TERM": "xterm-256color", "COLORTERM": "", **(environ or {})},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self.written = ""

    def wait_for(self, pattern: str) -> None:
        """Read until the program has written something."""
        while not re.search(pattern, self.written):
            if not self._read():
                raise SystemExit(f"{pattern!r} did not come: {self.written!r}")

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._master, keys.encode())

    def end(self) -> str:
        """Read until the program has ended, and return all it wrote."""
        while self._read():
            pass
        self._process.wait(timeout=PATIENCE)
        os.close(self._master)
        return self.written

    def _read(self) -> bool:
        readable, _, _ = select.select([self._master], [], [], PATIENCE)
        if not readable:
            self._process.send_signal(signal.SIGKILL)
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:  # what Linux says of a terminal that nobody has open any more
            return False
        self.written += data.decode(errors="replace")
        return bool(data)


def last_screen(written: str) -> str:
    """Return what a program that draws whole screens has shown last."""
    return written.rpartition(_LEAVE)[0].rpartition(_HOME)[2]


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


def demo() -> str:
    """Show the demonstration."""
    return Terminal("demo").end()


def top() -> str:
    """Show the live table."""
    with ReferenceServer(port=PORT) as server:
        terminal = Terminal("top", "jobs/", environ={"CONSUL_HTTP_ADDR": server.address})
        terminal.wait_for("looking|0 held")
        with scene(server.address):
            terminal.wait_for(r"4 held, 2 waiting")
            terminal.written = ""
            terminal.wait_for(r"jobs/reports/leader(?s:.*)[3-9] s")
            terminal.type("q")
            return last_screen(terminal.end())


def doctor() -> str:
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
        return Terminal("doctor", "service/reports", environ=environ).end()


SCREENS: dict[str, tuple[str, Callable[[], str]]] = {
    "demo": ("consul-coord demo", demo),
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
        plain, picture = drawn(make(), title=title, name=name)
        (PICTURES / f"{name}.txt").write_text(plain, encoding="utf-8")
        (PICTURES / f"{name}.svg").write_text(picture, encoding="utf-8")
        print(f"docs/pictures/{name}.txt, docs/pictures/{name}.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
