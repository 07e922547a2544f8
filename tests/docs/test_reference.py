"""The API pages show every public name, and no name that does not exist.

The pages name what is shown, and the strict build fails at a name without a docstring to show; so a name that
is on a page is on the site.
"""

from __future__ import annotations

import importlib
import re
from collections import Counter

import pytest

import consul_coord
import consul_coord.observability
import consul_coord.protocols
import consul_coord.server
import consul_coord.testing
import consul_coord.testing.fakes
from tests.docs.blocks import ROOT
from tools.docs_names import expanded, public_names

SHOWN = Counter(
    name
    for page in (ROOT / "docs" / "reference").glob("*.md")
    for name in re.findall(r"^::: (\S+)$", expanded(page.read_text(encoding="utf-8")), re.MULTILINE)
)
MODULES = (
    consul_coord,
    consul_coord.observability,
    consul_coord.protocols,
    consul_coord.server,
    consul_coord.testing,
    consul_coord.testing.fakes,
)
FIXTURES = ("async_consul_client", "consul_client", "consul_server", "consul_server_config", "real_consul")
PUBLIC = [
    *(f"{module.__name__}.{name}" for module in MODULES for name in module.__all__),
    "consul_coord.events",  # as a whole
    *(f"pytest_consul_coord.{name}" for name in FIXTURES),
]


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_shown_once(name: str) -> None:
    assert SHOWN[name] == 1


@pytest.mark.parametrize("name", sorted(SHOWN))
def test_every_name_that_is_shown_exists(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    assert hasattr(importlib.import_module(module), attribute)


def test_the_pages_were_found() -> None:
    assert len(SHOWN) > len(consul_coord.__all__)


def test_names_are_read_without_importing() -> None:
    assert public_names("consul_coord") == [f"consul_coord.{name}" for name in consul_coord.__all__]
    with pytest.raises(LookupError, match="has no __all__"):
        public_names("consul_coord.errors")


def test_a_star_stands_for_all_names_of_a_module() -> None:
    text = expanded("Words.\n\n::: consul_coord.observability.*\n\nMore words.")
    names = "\n\n".join(
        f"::: consul_coord.observability.{name}" for name in consul_coord.observability.__all__
    )
    assert text == f"Words.\n\n{names}\n\nMore words."
