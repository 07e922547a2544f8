"""What a run came to: the shares, and the survivors with what a person says of them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from proof.mutants.operators import OPERATORS, OWN
from proof.mutants.run import JUDGES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from proof.mutants.run import Result, Who

JUDGED = Path(__file__).with_name("judged.toml")


def judgements() -> Mapping[str, str]:
    """Return why survivors change nothing that is promised, by their names."""
    return dict(tomllib.loads(JUDGED.read_text()))


def share(results: Iterable[Result], who: Who) -> tuple[int, int]:
    """Return how many of those that ``functional`` tests or the ``simulator`` reached it has caught."""
    reached = [each.verdict for each in results if each.who == who and each.verdict != "not reached"]
    return reached.count("caught"), len(reached)


def report(results: Iterable[Result]) -> str:
    """Return it as text for the documentation."""
    why = judgements()
    by_name: dict[str, dict[Who, Result]] = {}
    for result in results:
        by_name.setdefault(result.name, {})[result.who] = result
    harmless = [name for name in by_name if name in why]
    harmful = {name: found for name, found in by_name.items() if name not in why}
    every = [result for found in harmful.values() for result in found.values()]
    caught = sum(any(each.verdict == "caught" for each in found.values()) for found in harmful.values())
    rows = [
        f"{len(by_name)} mutants, {len(harmless)} of them judged to change nothing promised.",
        "",
        "| | caught | of those it reaches | share |",
        "|---|---|---|---|",
        *(f"| {who} | {' | '.join(_shares(*share(every, who)))} |" for who in JUDGES),
        f"| either | {' | '.join(_shares(caught, len(harmful)))} |",
        "",
        "| operator | functional | simulator |",
        "|---|---|---|",
    ]
    for name in OPERATORS:
        some = [each for each in every if each.operator == name]
        if some:
            shown = " | ".join("{} of {}".format(*share(some, who)) for who in JUDGES)
            rows.append(f"| {name}{' (own)' if name in OWN else ''} | {shown} |")
    for who in JUDGES:
        missed = [each for each in every if each.who == who and each.verdict == "missed"]
        rows += ["", f"Survivors, {who}:", "", *(f"- `{each.name}`: {each.shown}" for each in missed)]
    return "\n".join(rows) + "\n"


def _shares(part: int, whole: int) -> tuple[str, str, str]:
    return str(part), str(whole), f"{part / whole:.0%}" if whole else "–"
