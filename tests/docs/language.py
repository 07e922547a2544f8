"""Sentences of texts for people: pages, docstrings and commits' subjects; and what plain English avoids.

Rules
- Code is no prose. Fenced blocks, targets of links and comments are left out; code in a line is one word.
- A sentence ends with a full stop, a question mark or an exclamation mark, or with its paragraph, list item
  or table cell.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MOST_WORDS = 35
"""How many words a sentence may have; about 20 is the aim."""
MOST_BREAKS = 2
"""How many semicolons and colons a sentence may have."""
FEWEST_GAPS = 3
"""How many spaces make a message of a string in the code."""

AVOIDED = {
    "retry": r"\b(?:ride|rides|rode|ridden|riding) out\b",
    "notify, report": r"\b(?:is|are|was|were|be|been|gets?|got) told\b|\btells? of\b|\btold of\b",
    "treat as held": r"\bbeliev(?:e|es|ed|ing) in\b",
    "except": r"\bbut for\b",
    "otherwise": r"\b(?:would|will|could|might|may|must|or|it) else\b|^[Ee]lse[,: ]",
    "again, new": r"\banew\b|\bafresh\b",
    "invalid, not one": r"(?<!there )\b(?:is|are|was|were) none\b",
    "without warning": r"\bwithout a word\b",
    "force-release": r"\bby force\b",
    "each": r"\bevery single\b",
    "a person, a client, the caller": r"^(?:Who|Whoever|Whosoever)\b[^?]*$",
    "the thing itself, as a noun": r"^What\b[^?]*\.$",
}
"""What plain English says instead, and what it avoids, as a regular expression over one sentence."""


_END = re.compile(r"(?<!\be\.g)(?<!\bi\.e)[.!?][)\"'*_]*(?=\s+[\"'(*_`]*[A-Z0-9`*]|\s*$)")


_LITERAL = re.compile(r"::\n\n(?:[ ]{2,}.*\n|\n)*")


class Sentence(NamedTuple):
    """One sentence, and where it begins."""

    line: int
    text: str

    def complaints(self) -> Iterator[str]:
        """Give what is wrong with it."""
        words = len(re.findall(r"[\w`'’./-]*\w[\w`'’./-]*", self.text))
        if words > MOST_WORDS:
            yield f"{words} words, at most {MOST_WORDS}"
        if len(re.findall(r"[;:](?=\s)", self.text)) > MOST_BREAKS:
            yield f"more than {MOST_BREAKS} semicolons and colons"
        yield from self.avoided()

    def avoided(self) -> Iterator[str]:
        """Give the words in it that plain English avoids."""
        for better, avoided in AVOIDED.items():
            if found := re.search(avoided, self.text):
                yield f"{found[0][:30]!r}: say {better}"


def page(text: str) -> Iterator[Sentence]:
    """Give the sentences of a page in Markdown."""
    text = re.sub(r"<!--.*?-->", lambda found: re.sub(r"[^\n]", "", found[0]), text, flags=re.DOTALL)
    block: list[tuple[int, str]] = []
    fence = ""
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if fence or stripped.startswith(("```", "~~~")):
            yield from _sentences(block)
            block = []
            fence = "" if fence and stripped.startswith(fence) else fence or stripped[:3]
        elif not stripped or re.match(
            r"#|::: |\|--|!\[|\[[\w-]+\]: |options:$|filters: |inherited_members: ", stripped
        ):
            yield from _sentences(block)
            block = []
        elif stripped.startswith("|"):
            for cell in re.split(r"(?<!\\)\|", stripped.strip("|")):
                yield from _sentences([(number, cell.strip())])
        else:
            if re.match(r"([-*+]|\d+\.) ", stripped):
                yield from _sentences(block)
                block = []
                stripped = re.sub(r"^([-*+]|\d+\.) ", "", stripped)
            block.append((number, stripped))
    yield from _sentences(block)


def docstrings(text: str) -> Iterator[Sentence]:
    """Give the sentences of a module's docstrings, those of fields included."""
    for node in ast.walk(ast.parse(text)):
        for child in getattr(node, "body", ()) if not isinstance(node, ast.Lambda | ast.IfExp) else ():
            if (
                isinstance(child, ast.Expr)
                and isinstance(child.value, ast.Constant)
                and isinstance(child.value.value, str)
            ):
                literal = _LITERAL.sub(":\n", child.value.value)
                for sentence in page(literal):
                    yield Sentence(child.lineno + sentence.line - 1, sentence.text)


def messages(text: str) -> Iterator[Sentence]:
    """Give the texts in a module's code: errors, lines of the log, help; no docstring, and no short name."""
    tree = ast.parse(text)
    bodies = [body for node in ast.walk(tree) if isinstance(body := getattr(node, "body", None), list)]
    left_out = {id(child.value) for body in bodies for child in body if isinstance(child, ast.Expr)}
    left_out |= {
        id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values
    }
    for node in ast.walk(tree):
        if id(node) in left_out:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            said = node.value
        elif isinstance(node, ast.JoinedStr):
            said = "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
        else:
            continue
        if said.count(" ") >= FEWEST_GAPS:
            yield Sentence(node.lineno, said)


def _sentences(block: list[tuple[int, str]]) -> Iterator[Sentence]:
    if not block or block[0][1].startswith("==="):  # nothing, or a table of reStructuredText
        return
    text, lines = "", []
    for number, line in block:
        part = line + " "
        lines += [number] * len(part)
        text += part
    plain = re.sub(r"\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])", lambda found: found[1], text)
    # Lengths differ after links are dropped: lines are those of the block then, which is near enough.
    start = 0
    for end in _END.finditer(plain):
        sentence = plain[start : end.end()].strip()
        if sentence:
            yield Sentence(lines[min(start, len(lines) - 1)], _cleaned(sentence))
        start = end.end()
    rest = plain[start:].strip()
    if rest:
        yield Sentence(lines[min(start, len(lines) - 1)], _cleaned(rest))


def _cleaned(sentence: str) -> str:
    """Return a sentence without emphasis, each piece of code as one word."""
    sentence = re.sub(r"``?[^`]+``?", "code", sentence)
    return re.sub(r"\*\*|(?<!\w)[*_](?=\w)|(?<=\w)[*_](?!\w)", "", sentence).strip()


def in_file(path: Path) -> list[str]:
    """Return what is wrong in a page or a module, each with its line."""
    text = path.read_text("utf-8")
    code = path.suffix == ".py"
    complaints = [
        *((one, which) for one in (docstrings if code else page)(text) for which in one.complaints()),
        *((one, which) for one in (messages(text) if code else ()) for which in one.avoided()),
    ]
    return [f"{path}:{one.line}: {which}: {one.text[:160]}" for one, which in complaints]
