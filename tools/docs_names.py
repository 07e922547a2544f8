"""A hook of mkdocs: ``::: MODULE.*`` on a page stands for every public name of the module, in its order.

Rules
- Public is what the module's ``__all__`` says, read without importing it.
- A module without ``__all__`` is an error: then nobody has said what is public.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_ALL_OF = re.compile(r"^::: ([\w.]+)\.\*$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:  # noqa: ANN401 - mkdocs is not typed
    """Write the names out, before the page is rendered."""
    return expanded(markdown)


def expanded(text: str) -> str:
    """Return a page with every ``::: MODULE.*`` written out."""
    return _ALL_OF.sub(lambda found: "\n\n".join(f"::: {name}" for name in public_names(found[1])), text)


def public_names(module: str) -> list[str]:
    """Return the public names of a module, dotted. Raises LookupError when it has no ``__all__``."""
    path = ROOT / module.replace(".", "/")
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and any(
            getattr(each, "id", "") == "__all__" for each in node.targets
        ):
            names: list[str] = ast.literal_eval(node.value)
            return [f"{module}.{name}" for name in names]
    raise LookupError(f"{source} has no __all__")
