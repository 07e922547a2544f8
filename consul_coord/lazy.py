"""Load a package's names when somebody first asks for them (PEP 562).

Imports nothing of this package.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager


def lazily(
    package: str,
    homes: Mapping[str, str],
    *,
    loading: Callable[[str], AbstractContextManager[object]] = lambda _: nullcontext(),
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and ``__dir__`` of a package.

    ``homes``: by module below the package (``"sync.lock"``), the names that it gives, separated by blanks.
    The modules themselves are attributes of the package as well, as after an ordinary import. ``loading``:
    the context in which a module is imported, by its full name.
    """
    home_of = {name: module for module, names in homes.items() for name in names.split()}
    modules = {module.partition(".")[0] for module in homes}

    def getattribute(name: str) -> object:
        if name not in home_of and name not in modules:
            message = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(message, name=name, obj=sys.modules[package])
        home = f"{package}.{home_of.get(name, name)}"
        with loading(home):
            __import__(home)  # not by importlib: ``python -X importtime`` does not see that
        module = sys.modules[home]
        if name not in home_of:
            return module
        found = getattr(module, name)
        setattr(sys.modules[package], name, found)
        return found

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home_of})

    return getattribute, names
