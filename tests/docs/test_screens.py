"""The screens in docs/pictures still look like what the command line shows: columns, checks, steps."""

from __future__ import annotations

import json
import re
from html import unescape

import pytest

from consul_coord.cli import main
from consul_coord.cli.top import COLUMNS
from consul_coord.server import ReferenceServer
from tests.cli.test_demo import STEP
from tests.docs.blocks import ROOT
from tools.make_screens import SCREENS, drawn, last_screen

PICTURES = ROOT / "docs" / "pictures"
REMAKE = "make it anew: python tools/make_screens.py"


def plain(name: str) -> list[str]:
    return (PICTURES / f"{name}.txt").read_text(encoding="utf-8").splitlines()


def picture(name: str) -> str:
    return (PICTURES / f"{name}.svg").read_text(encoding="utf-8")


def squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


@pytest.mark.parametrize("name", SCREENS)
def test_text_and_picture_say_the_same(name: str) -> None:
    shown = squeezed(unescape("".join(re.findall(r"<text [^>]*>([^<]*)</text>", picture(name)))))
    assert squeezed("".join(plain(name))) in shown


@pytest.mark.parametrize("name", SCREENS)
def test_a_picture_loads_nothing(name: str) -> None:
    assert set(re.findall(r"""(?:href|src|url)\W+(\w+:[^"')\s]+)""", picture(name))) == set()
    assert "@font-face" not in picture(name)


def test_top_has_its_columns() -> None:
    (heads,) = [line.split() for line in plain("top") if line.split()[:1] == ["KIND"]]
    assert tuple(heads) == COLUMNS, REMAKE


def test_doctor_looks_at_what_it_looks_at_now(capsys: pytest.CaptureFixture[str]) -> None:
    with ReferenceServer() as server:
        main(["doctor", "service/reports", "--address", server.address, "--json"])
    names = [json.loads(line)["what"] for line in capsys.readouterr().out.splitlines()]
    assert [line.split()[1] for line in plain("doctor") if not line.startswith(" ")] == names, REMAKE


def test_the_demonstration_goes_as_it_goes_now() -> None:
    begin, *steps, verdict = plain("demo")
    assert "processes want the lock" in begin
    assert all(STEP.fullmatch(step) for step in steps), REMAKE
    assert {"started", "acquired", "waiting", "killed", "released"} == {step.split()[5] for step in steps}
    assert verdict.startswith("All is well: 4 holds, none overlapped another; fences rose: ")


def test_the_last_of_several_screens_is_taken() -> None:
    assert last_screen("\x1b[?1049h\x1b[Hone\x1b[Htwo\x1b[?1049l") == "two"


def test_empty_lines_at_the_end_are_not_drawn() -> None:
    text, svg = drawn("\x1b[32mok\x1b[0m   \r\n  it is\r\n\r\n", title="a title", name="test")
    assert text == "ok\n  it is\n"
    assert "a&#160;title" in svg or "a title" in svg
