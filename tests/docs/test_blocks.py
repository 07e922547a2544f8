"""Every Python block of the documentation runs as it stands, against the reference server."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
from typing import TYPE_CHECKING

import pytest

from consul_coord.server import ReferenceServer
from tests.docs.blocks import ROOT, Block, blocks_of, documents
from tests.support.programs import Program

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TIMEOUT = 90.0
BLOCKS = [
    block
    for path in documents()
    for block in blocks_of(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8"))
]


@pytest.fixture
def address() -> Iterator[str]:
    """Yield a server of its own for each block: none depends on what another left."""
    with ReferenceServer() as server:
        yield server.address


def place_of(block: Block) -> str:
    return block.place


@pytest.mark.parametrize("block", BLOCKS, ids=place_of)
def test_it_runs(block: Block, address: str, tmp_path: Path) -> None:
    if block.skip is not None:
        pytest.skip(block.skip)
    if block.needs is not None and importlib.util.find_spec(block.needs) is None:
        pytest.skip(f"needs {block.needs}")
    code, stderr = run(block, address=address, folder=tmp_path)
    assert code in ((0, -signal.SIGTERM) if block.until_term else (0,)), stderr


def run(block: Block, *, address: str, folder: Path) -> tuple[int, str]:
    """Run a block; return its exit code and what it wrote to stderr."""
    file = folder / "block.py"
    file.write_text(block.code, encoding="utf-8")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("CONSUL_")}
    environ["CONSUL_HTTP_ADDR"] = address
    with Program(["-W", "error", str(file)], env=environ, cwd=folder) as program:
        if block.until_term:
            assert program.stdout.readline(), "it ended, or said nothing, before it got its signal"
            program.send_signal(signal.SIGTERM)
        _, stderr = program.communicate(TIMEOUT)
        return program.wait(), stderr


PAGES = {block.place.partition(":")[0] for block in BLOCKS}


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted(page for page in PAGES if page != "docs/testing.md"))
def test_a_reader_may_run_a_page_from_its_beginning_to_its_end(
    page: str, address: str, tmp_path: Path
) -> None:
    """On one server, as a reader does: a block finds the keys that those before it have left."""
    for block in BLOCKS:
        wanted = block.skip is None and (block.needs is None or importlib.util.find_spec(block.needs))
        if block.place.startswith(f"{page}:") and wanted:
            code, stderr = run(block, address=address, folder=tmp_path)
            assert code in {0, -signal.SIGTERM}, f"{block.place}: {stderr}"


TEXT = """
```python
print(1)
```

<!-- block: skip, for a reason -->
```python
raise SystemExit(3)
```

```sh
not ours
```

<!-- block: until TERM -->
```python
print("here", flush=True)
__import__("time").sleep(60)
```

<!-- block: needs a_package -->
```python
print(2)
```
"""


def test_blocks_are_found_with_what_is_said_of_them() -> None:
    assert blocks_of("doc.md", TEXT) == [
        Block("doc.md:3", "print(1)\n"),
        Block("doc.md:8", "raise SystemExit(3)\n", skip="for a reason"),
        Block("doc.md:17", 'print("here", flush=True)\n__import__("time").sleep(60)\n', until_term=True),
        Block("doc.md:23", "print(2)\n", needs="a_package"),
    ]


@pytest.mark.parametrize("said", ["skip", "until HUP", "whatever"])
def test_what_is_not_understood_is_an_error(said: str) -> None:
    with pytest.raises(ValueError, match="not understood"):
        blocks_of("doc.md", f"<!-- block: {said} -->\n```python\npass\n```\n")


def test_a_block_that_fails_is_noticed(tmp_path: Path) -> None:
    code, stderr = run(Block("doc.md:1", "raise ValueError('no')"), address="127.0.0.1:1", folder=tmp_path)
    assert code == 1
    assert "ValueError: no" in stderr


def test_a_block_that_waits_for_its_signal_gets_it(tmp_path: Path) -> None:
    block = blocks_of("doc.md", TEXT)[2]
    code, _ = run(block, address="127.0.0.1:1", folder=tmp_path)
    assert code == -signal.SIGTERM


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_block_escapes_by_its_fence(path: Path) -> None:
    """Only what is included from a file, which is run by other tests, has another fence."""
    text = path.read_text(encoding="utf-8")
    fences = re.findall(
        r"^ *(?:`{3,}|~{3,}) *(?:\{ *\.)?(?:py|python|python3|pycon)\b.*\n(?!--8<-- )", text, re.MULTILINE
    )
    assert len(fences) == len(blocks_of(path.name, text))
