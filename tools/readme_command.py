"""Print a command of README.md, so that what is documented is what is run.

    python3 tools/readme_command.py NAME [FILE]

Rules
- A command is a fenced block whose opening fence stands directly below the line ``<!-- command: NAME -->``.
- It is printed as it stands, to be run by a shell. Exit status 1, with the reason on standard error, when the
  name has no such block, or several, or when the block is empty.
- Standard library only: it runs before anything is installed.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path


class CommandNotFoundError(Exception):
    """The text has no single, non-empty block for the name."""


def command(name: str, text: str) -> str:
    """Return the command called ``name`` in ``text``, without a trailing newline."""
    marker = f"<!-- command: {name} -->"
    fenced = rf"^{re.escape(marker)}\n(`{{3,}})[^`\n]*\n(.*?)^\1$"
    blocks = re.findall(fenced, text, flags=re.MULTILINE | re.DOTALL)
    if len(blocks) != 1:
        raise CommandNotFoundError(f"{len(blocks)} fenced blocks directly below '{marker}' instead of one")
    body = str(blocks[0][1]).strip()
    if not body:
        raise CommandNotFoundError(f"the block below '{marker}' is empty")
    return body


def main(arguments: list[str]) -> int:
    """Run as a program; return the exit status."""
    match arguments:
        case [name]:
            file = Path(__file__).parent.parent / "README.md"
        case [name, given]:
            file = Path(given)
        case _:
            print("usage: readme_command.py NAME [FILE]", file=sys.stderr)
            return 2
    try:
        print(command(name, file.read_text(encoding="utf-8")))
    except (CommandNotFoundError, OSError) as error:
        print(f"{file}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
