"""docs/design.md names folders of tests and of the package that exist."""

from __future__ import annotations

import re

import pytest

from tests.docs.blocks import ROOT

TEXT = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
NAMED = sorted(
    {
        *re.findall(r"`(tests/\w+)`", TEXT),
        *re.findall(r"`(recipes/\w+(?:/\w+)*\.py|http/\w+(?:/\w+)*(?:\.py)?)`", TEXT),
    }
)


@pytest.mark.parametrize("name", NAMED)
def test_what_is_named_exists(name: str) -> None:
    assert (ROOT / name).exists() or (ROOT / "consul_coord" / name).exists()


def test_names_were_found() -> None:
    assert {"tests/lock", "recipes/session/lease.py", "http/endpoints"} <= set(NAMED)
