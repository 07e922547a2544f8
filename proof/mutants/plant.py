"""Plant a mutant in a running program: its functions get the code that the changed text compiles to.

Starting Python and reading the tests takes longer than most tests. So a nursery reads them once, and plants
each mutant in a fork of itself.
"""

from __future__ import annotations

import gc
import inspect
import sys
from types import CodeType, FunctionType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def plant(file: Path, text: str, mutated: str, function: str) -> bool:
    """Change a function of a module wherever it is referred to; returns whether that was possible.

    It is not where the function needs other variables of its surroundings than before: without ``super()``.
    A module that nobody has imported so far is left to its file.
    """
    before, after = (list(_functions(compile(each, str(file), "exec"))) for each in (text, mutated))
    changed = {
        (was.co_qualname, was.co_firstlineno): code
        for was, code in zip(before, after, strict=True)
        if was.co_qualname == function
    }
    gc.unfreeze()  # what is frozen would not be listed
    found = [
        each
        for each in gc.get_objects()
        if isinstance(each, FunctionType) and each.__code__.co_filename == str(file)
    ]
    if not found:
        return not any(getattr(each, "__file__", None) == str(file) for each in list(sys.modules.values()))
    done = False
    for each in found:
        code = changed.get((each.__code__.co_qualname, each.__code__.co_firstlineno))
        if code is not None:
            if len(code.co_freevars) != len(each.__code__.co_freevars):
                return False
            each.__code__ = code
            done = True
    return done


def _functions(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of a module's functions, without those within them."""
    for each in code.co_consts:
        if isinstance(each, CodeType):
            if each.co_flags & inspect.CO_NEWLOCALS:
                yield each
            else:
                yield from _functions(each)
