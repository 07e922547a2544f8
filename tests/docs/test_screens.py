"""The screens in docs/pictures still look like what the command line shows: columns, checks, steps."""

from __future__ import annotations

import json
import re
from html import unescape

import pytest

from consul_coord.cli import main
from consul_coord.cli.demo.stage import NEXT
from consul_coord.cli.view import COLUMNS
from consul_coord.server import ReferenceServer
from tests.cli.test_demo import STEP
from tests.docs.blocks import ROOT
from tools.make_screens import SCREENS, SIZES, drawn

PICTURES = ROOT / "docs" / "pictures"
REMAKE = "make it anew: python tools/make_screens.py"


def plain(name: str) -> list[str]:
    return (PICTURES / f"{name}.txt").read_text(encoding="utf-8").splitlines()


def picture(name: str) -> str:
    return (PICTURES / f"{name}.svg").read_text(encoding="utf-8")


def squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


FILES = [f"{name}-{width}x{height}" for name in SCREENS for width, height in SIZES]


@pytest.mark.parametrize("name", FILES)
def test_text_and_picture_say_the_same(name: str) -> None:
    shown = squeezed(unescape("".join(re.findall(r"<text [^>]*>([^<]*)</text>", picture(name)))))
    assert squeezed("".join(plain(name))) in shown


@pytest.mark.parametrize("name", FILES)
def test_a_picture_loads_nothing(name: str) -> None:
    assert set(re.findall(r"""(?:href|src|url)\W+(\w+:[^"')\s]+)""", picture(name))) == set()
    assert "@font-face" not in picture(name)


def test_top_has_its_columns() -> None:
    names = [column.name for column in COLUMNS]
    for file, missing in (("top-120x40", 0), ("holders-120x40", 1)):
        (heads,) = [line.split() for line in plain(file) if line.split()[:1] == ["KIND"]]
        assert heads == names[: len(names) - missing], REMAKE


@pytest.mark.parametrize("name", FILES)
def test_every_line_fits_its_terminal(name: str) -> None:
    assert max(map(len, plain(name))) <= int(name.rpartition("-")[2].partition("x")[0])


def test_doctor_looks_at_what_it_looks_at_now(capsys: pytest.CaptureFixture[str]) -> None:
    with ReferenceServer() as server:
        main(["doctor", "service/reports", "--address", server.address, "--json"])
    names = [json.loads(line)["what"] for line in capsys.readouterr().out.splitlines()]
    assert [line.split()[1] for line in plain("doctor-120x40") if not line.startswith(" ")] == names, REMAKE


def test_the_demonstration_goes_as_it_goes_now() -> None:
    for file in FILES[: len(SIZES)]:
        begin, *lines = plain(file)
        assert "processes want the lock" in begin
        steps = [step for line in lines if (step := STEP.fullmatch(line))]
        told = {step["what"] for step in steps}
        assert told == {"started", "acquired", "waiting", "killed", "releases"}, REMAKE
        assert lines[-1] == NEXT[-1], REMAKE
        assert any("All is well: 4 holds, none overlapped another" in line for line in lines)


def test_empty_lines_at_the_end_are_not_drawn() -> None:
    text, svg = drawn("\x1b[32mok\x1b[0m   \r\n  it is\r\n\r\n", title="a title", name="test")
    assert text == "ok\n  it is\n"
    assert "a&#160;title" in svg or "a title" in svg
