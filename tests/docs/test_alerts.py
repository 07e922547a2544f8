"""Whatever the documentation alarms on is measured under that name."""

from __future__ import annotations

import re

import pytest

from consul_coord.observability.measures import MEASURES
from tests.docs.blocks import ROOT

ENDINGS = {
    "counter": ("_total",),
    "level": ("",),
    "histogram": ("_seconds_bucket", "_seconds_sum", "_seconds_count"),
}
NAMES = {
    f"consul_coord_{measure.name.replace('.', '_')}{ending}"
    for measure in MEASURES
    for ending in ENDINGS[measure.kind]
}
USES = [
    (page.relative_to(ROOT).as_posix(), name)
    for page in sorted((ROOT / "docs").rglob("*.md"))
    for block in re.findall(
        r"^ *```ya?ml\n(.*?)^ *```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    for name in sorted(set(re.findall(r"\bconsul_coord_\w+", block)))
]


@pytest.mark.parametrize(("page", "name"), USES)
def test_a_rule_names_a_measure(page: str, name: str) -> None:
    assert name in NAMES, page


def test_the_tutorial_alarms() -> None:
    assert ("docs/tutorial.md", "consul_coord_lost_total") in USES
