"""What a run came to: the shares, and the survivors with what a person says of them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from proof.mutants.operators import OPERATORS, OWN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from proof.mutants.run import Result

JUDGED = Path(__file__).with_name("judged.toml")


def judgements() -> Mapping[str, str]:
    """Return why survivors change nothing that is promised, by their names."""
    return dict(tomllib.loads(JUDGED.read_text()))


def share(results: Iterable[Result], who: str) -> tuple[int, int]:
    """Return how many of those that ``functional`` tests or the ``simulator`` reached it has caught."""
    reached = [getattr(each, who) for each in results if getattr(each, who) in {"caught", "missed"}]
    return reached.count("caught"), len(reached)


def report(results: list[Result]) -> str:
    """Return it as text for the documentation."""
    why = judgements()
    harmful = [each for each in results if each.name not in why]
    rows = [
        f"{len(results)} mutants, {len(results) - len(harmful)} of them judged to change nothing promised.",
        "",
    ]
    rows += ["| | caught | of those it reaches | share |", "|---|---|---|---|"]
    for who in ("functional", "simulator"):
        caught, reached = share(harmful, who)
        rows.append(f"| {who} | {caught} | {reached} | {_percent(caught, reached)} |")
    anybody = sum(each.caught for each in harmful)
    rows += [f"| either | {anybody} | {len(harmful)} | {_percent(anybody, len(harmful))} |", ""]
    rows += ["| operator | functional | simulator |", "|---|---|---|"]
    for name in OPERATORS:
        some = [each for each in harmful if each.operator == name]
        if some:
            shown = " | ".join("{} of {}".format(*share(some, who)) for who in ("functional", "simulator"))
            rows.append(f"| {name}{' (own)' if name in OWN else ''} | {shown} |")
    rows += ["", "Survivors:", ""]
    rows += [f"- `{each.name}`: {each.shown}" for each in harmful if not each.caught]
    rows += ["", "Caught by functional tests alone, though the simulator reaches them:", ""]
    rows += [
        f"- `{each.name}`: {each.shown}"
        for each in harmful
        if each.functional == "caught" and each.simulator == "missed"
    ]
    return "\n".join(rows) + "\n"


def _percent(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "–"
