"""The examples in docs/testing.md, run as an application's tests: each passes, and none is without a test."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from tests.docs.blocks import ROOT, blocks_of

if TYPE_CHECKING:
    from pathlib import Path


pytest_plugins = ["pytester"]

BLOCKS = [
    block
    for block in blocks_of("docs/testing.md", (ROOT / "docs" / "testing.md").read_text(encoding="utf-8"))
    if (block.needs is None or find_spec(block.needs)) and "def test_" in block.code
]


@pytest.mark.slow
def test_the_examples_pass(
    pytester: pytest.Pytester, consul_binary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONSUL_BIN", str(consul_binary))
    pytester.makepyfile(**{f"test_{number}": block.code for number, block in enumerate(BLOCKS)})
    result = pytester.runpytest_subprocess("-W", "error", "-p", "no:cacheprovider", "-rA", timeout=110)
    outcomes = result.parseoutcomes()
    assert set(outcomes) == {"passed"}
    assert outcomes["passed"] >= len(BLOCKS)
