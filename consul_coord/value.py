"""The base of the package's frozen dataclasses: one ``repr``, one comparison and one hash for all of them.

Imports nothing of this package.

``dataclass`` generates and compiles these methods for each class, which is half of what a class costs each
start of a process. A class that inherits them is made with ``eq=False, repr=False``.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    _Base = DataclassInstance
else:
    _Base = object


class Value(_Base):
    """A dataclass that compares, hashes and shows itself as ``dataclass`` would have it do."""

    __slots__ = ()

    def __repr__(self) -> str:
        parts = (f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr)
        return f"{type(self).__qualname__}({', '.join(parts)})"

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(
            getattr(self, each.name) == getattr(other, each.name) for each in fields(self) if each.compare
        )

    def __hash__(self) -> int:
        hashed = (each for each in fields(self) if (each.compare if each.hash is None else each.hash))
        return hash(tuple(getattr(self, each.name) for each in hashed))
