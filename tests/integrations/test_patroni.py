"""The page on Patroni's way of using Consul, on the reference server and on a real agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.integrations import pages

if TYPE_CHECKING:
    from pathlib import Path


def test_the_page_runs(address: str, tmp_path: Path) -> None:
    (program,) = pages.blocks("patroni", "python")
    assert pages.run(program, folder=tmp_path, address=address) == "the cluster had True\n"
