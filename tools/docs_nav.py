"""A hook of mkdocs: a page that the navigation does not mention is put at the end of its folder's section.

Rules
- Pages of ``howto`` go to "How to", all others to "Explanation"; in the order of their names, under their own
  headings, but a folder's ``index.md`` comes first.
- What the navigation mentions stays where it is. A page it mentions that does not exist remains an error.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

SECTIONS = {"howto": "How to"}
"""By folder."""
OTHERS = "Explanation"


def on_config(config: Any) -> Any:  # noqa: ANN401 - mkdocs is not typed
    """Complete the navigation, as mkdocs reads its configuration."""
    folder = Path(config["docs_dir"])
    pages = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.md"))
    complete(config["nav"], pages)
    return config


def complete(nav: list[dict[str, Any]], pages: list[str]) -> None:
    """Add the pages that a navigation lacks."""
    known = set(mentioned(nav))
    for page in pages:
        if page not in known:
            folder, _, name = page.rpartition("/")
            entries = section(nav, SECTIONS.get(folder, OTHERS))
            entries.insert(0 if name == "index.md" else len(entries), page)


def section(nav: list[dict[str, Any]], name: str) -> list[Any]:
    """Return the entries of a section. Raises LookupError when there is none of that name."""
    for entry in nav:
        if isinstance(entry.get(name), list):
            found: list[Any] = entry[name]
            return found
    raise LookupError(f"mkdocs.yml has no section {name!r}")


def mentioned(entry: object) -> list[str]:
    """Return the pages that a part of the navigation mentions."""
    if isinstance(entry, str):
        return [entry]
    inner = entry.values() if isinstance(entry, dict) else entry if isinstance(entry, list) else ()
    return [page for each in inner for page in mentioned(each)]
