"""Make the blocking facades and fakes from the async ones: ``python tools/make_sync.py``.

``--check`` only compares.

Rules
- The async side is the source, as ``async`` and ``await`` can be dropped but not invented.
- What is made is the source with the substitutions of ``TABLE``, in their order, then sorted and formatted by
  ruff. There is no other step: what can't be said that way is written by hand, in a file of its own.
- A made file says so in its first line. Change the source, and make it again.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
AIO, SYNC, FAKES = Path("consul_coord/aio"), Path("consul_coord/sync"), Path("consul_coord/testing/fakes")

_FACADES = (
    "blocks",
    "election",
    "endpoints",
    "group",
    "hold",
    "leadership",
    "lock",
    "multilock",
    "once",
    "partition",
    "rwlock",
    "semaphore",
    "session",
    "watch",
)
MADE = {SYNC / f"{name}.py": AIO / f"{name}.py" for name in _FACADES} | {
    FAKES / "blocking.py": FAKES / "coroutine.py"
}
"""The modules that are made, with their sources."""

TABLE = (
    # the language
    (r"\basync (?=def|for|with)", ""),
    (r"\bawait ", ""),
    (r"\b__a(?=(enter|exit|iter|next)__)", "__"),
    (r"\bStopAsyncIteration\b", "StopIteration"),
    # types
    (r"\bbool \| Awaitable\[bool\]", "bool"),
    (r"\bAwaitable\[(\w+)\]", r"\1"),
    (r"\bCoroutine\[Any, Any, (\w+(\[\w+\])?)\]", r"\1"),
    # names
    (r"\ban (`*)Async(?=[A-Z])", r"a \1"),
    (r"\bAsync(?=[A-Z])", ""),
    (r"\basync_(?=every\b|leader\b|observe\b)", ""),
    (r"\bconsul_coord\.aio\b", "consul_coord.sync"),
    (r"\bfakes\.tasks\b", "fakes.threads"),
    (r"``tasks``", "``threads``"),
    # words
    (r"\bcode on an event loop\b", "blocking code"),
    (r"\bfor event loops\b", "for blocking code"),
    (r"\bas methods to await\b", "as methods that block"),
    (r"\bAwait ``", "Call ``"),
)
"""What stands in the source, as a regular expression, and what is put in its place."""


def head(path: Path) -> str:
    """Return the first line of a made file."""
    return f"# Made from {MADE[path]} by `python tools/make_sync.py`: change that one.\n"


def made(path: Path, source: str) -> str:
    """Return what is to stand in a made file."""
    for pattern, replacement in TABLE:
        source = re.sub(pattern, replacement, source)
    sort = ("check", "--quiet", "--fix-only", "--select", "F401,I001", "--stdin-filename", str(path), "-")
    return _ruff(_ruff(head(path) + source, sort), ("format", "--stdin-filename", str(path), "-"))


def _ruff(text: str, arguments: tuple[str, ...]) -> str:
    command = [sys.executable, "-m", "ruff", *arguments]
    return subprocess.run(  # noqa: S603 - this interpreter's ruff
        command, input=text, capture_output=True, text=True, encoding="utf-8", check=True, cwd=ROOT
    ).stdout


def stale() -> dict[Path, str]:
    """Return the made files that are not as they should be, with what is to stand in them."""
    wanted = {path: made(path, (ROOT / source).read_text("utf-8")) for path, source in MADE.items()}
    return {
        path: text
        for path, text in wanted.items()
        if not (ROOT / path).exists() or (ROOT / path).read_text("utf-8") != text
    }


def main() -> int:
    """Make them, or tell which are not as they should be."""
    check = "--check" in sys.argv[1:]
    found = stale()
    for path, text in found.items():
        print(f"{path} {'is not what its source makes' if check else 'made'}")
        if not check:
            (ROOT / path).write_text(text, "utf-8")
    return int(check and bool(found))


if __name__ == "__main__":
    raise SystemExit(main())
