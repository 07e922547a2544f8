"""The operators: which pieces of a function can be wrong in a plausible way, and how.

Rules
- An operator is a row of ``OPERATORS``: a name, and a function from a node of the syntax tree to the texts
  that could stand there instead.
- The usual ones change comparisons, conditions, numbers and calls that nobody reads the result of. The others
  make the mistakes that are made in this field: times taken at the reply, wake-ups forgotten, guards dropped,
  readings that are stale.
- Texts that nobody runs are left alone: docstrings, messages, annotations, ``__repr__``.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Operator = Callable[[ast.AST], Iterator[str]]
    Function = ast.FunctionDef | ast.AsyncFunctionDef

_COMPARED: Final[dict[type[ast.cmpop], str]] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
_COUNTED: Final[dict[type[ast.operator], str]] = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*"}
_WAKES = frozenset({"set", "tell", "start", "fire", "wake", "notify", "stop", "subscribe", "hurry", "spawn"})
_GUARDS = frozenset({"check_index", "check_session", "check_not_exists"})
_SWAPPED = {"min": "max", "max": "min"}
_INDICES = {"modify_index": "create_index", "create_index": "modify_index", "lock_index": "modify_index"}
_TIMES = frozenset({"sent_at", "began", "started", "asked_at"})
_NOW = "io.now()"
"""The present time; ``places`` puts the function's own clock there."""
_FAR = 1e9


@dataclass(frozen=True, slots=True)
class Place:
    """A piece of a function's text, and what stands there instead."""

    function: str
    """Its qualified name in the module."""
    operator: str
    was: str
    becomes: str
    number: int
    """Which of several such pieces of that function it is."""
    first: int
    """The line of the module that it begins in; only to find the tests that reach it."""
    last: int
    start: int
    """Its offset in the module's text."""
    end: int
    scope: tuple[int, int]
    """The offsets of the lines of its function."""


def compared(node: ast.AST) -> Iterator[str]:
    """Compare the other way round, or off by one."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        left, right = ast.unparse(node.left), ast.unparse(node.comparators[0])
        yield f"({left} {_COMPARED[type(node.ops[0])]} {right})"
        if isinstance(node.ops[0], ast.Lt | ast.Gt):
            yield f"({left} {'>=' if isinstance(node.ops[0], ast.Lt) else '<='} {right})"


def joined(node: ast.AST) -> Iterator[str]:
    """Take ``and`` for ``or``, and leave one condition out."""
    if isinstance(node, ast.BoolOp):
        other = " or " if isinstance(node.op, ast.And) else " and "
        same = " and " if isinstance(node.op, ast.And) else " or "
        texts = [ast.unparse(value) for value in node.values]
        yield f"({other.join(f'({text})' for text in texts)})"
        for left_out in range(len(texts)):
            yield f"({same.join(f'({text})' for n, text in enumerate(texts) if n != left_out)})"


def negated(node: ast.AST) -> Iterator[str]:
    """Forget a ``not``."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield f"({ast.unparse(node.operand)})"


def counted(node: ast.AST) -> Iterator[str]:
    """Add what is to be subtracted, and the like."""
    if isinstance(node, ast.BinOp) and type(node.op) in _COUNTED and not _is_text(node):
        yield f"({ast.unparse(node.left)} {_COUNTED[type(node.op)]} {ast.unparse(node.right)})"


def bounded(node: ast.AST) -> Iterator[str]:
    """Take the larger for the smaller."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _SWAPPED:
        arguments = ", ".join(map(ast.unparse, [*node.args, *node.keywords]))
        yield f"{_SWAPPED[node.func.id]}({arguments})"


def numbered(node: ast.AST) -> Iterator[str]:
    """Be wrong by one, or about yes and no."""
    if isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield str(not node.value)
        elif isinstance(node.value, int | float):
            yield repr(node.value + 1)


def conditioned(node: ast.AST) -> Iterator[str]:
    """Take a branch always, or never."""
    if isinstance(node, ast.If | ast.IfExp | ast.While) and not isinstance(node.test, ast.Constant):
        yield "False"
        if not isinstance(node, ast.While):
            yield "True"


def uncalled(node: ast.AST) -> Iterator[str]:
    """Forget a call that nobody reads the result of."""
    if isinstance(node, ast.Expr) and isinstance(_awaited(node.value), ast.Call) and not _wakes(node):
        yield "pass"


def unwoken(node: ast.AST) -> Iterator[str]:
    """Forget a wake-up."""
    if isinstance(node, ast.Expr) and _wakes(node):
        yield "pass"


def stale(node: ast.AST) -> Iterator[str]:
    """Keep what was known before."""
    if isinstance(node, ast.Assign | ast.AugAssign):
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        if isinstance(target, ast.Attribute | ast.Subscript):
            yield "pass"


def left(node: ast.AST) -> Iterator[str]:
    """Go on where it is to stop, or stop where it is to go on."""
    if isinstance(node, ast.Raise | ast.Break):
        yield "pass"
    if isinstance(node, ast.Continue):
        yield "break"
    if isinstance(node, ast.Return) and node.value is None:
        yield "pass"


def received(node: ast.AST) -> Iterator[str]:
    """Take the time of the reply for that of the sending."""
    if isinstance(node, ast.Name) and node.id in _TIMES and isinstance(node.ctx, ast.Load):
        yield _NOW


def unguarded(node: ast.AST) -> Iterator[str]:
    """Drop a guard of a transaction."""
    if isinstance(node, ast.Call | ast.Tuple | ast.List):
        parts = node.args if isinstance(node, ast.Call) else node.elts
        for number, part in enumerate(parts):
            if _is_guard(part):
                rest = [*parts[:number], *parts[number + 1 :]]
                yield _with_parts(node, rest)


def widened(node: ast.AST) -> Iterator[str]:
    """Check for another index, or for any."""
    if isinstance(node, ast.Attribute) and node.attr in _INDICES and isinstance(node.ctx, ast.Load):
        yield f"{ast.unparse(node.value)}.{_INDICES[node.attr]}"


def unshielded(node: ast.AST) -> Iterator[str]:
    """Give a clean-up no end, or no time."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "shield":
        yield f"{ast.unparse(node.func)}(60.0)"
        yield f"{ast.unparse(node.func)}(0.0)"


def late(node: ast.AST) -> Iterator[str]:
    """Wait without an end."""
    if isinstance(node, ast.keyword) and isinstance(node.value, ast.Constant) and node.value.value is None:
        return  # it does
    if isinstance(node, ast.keyword) and node.arg in {"deadline", "timeout"}:
        yield f"{node.arg}={_FAR}"
    if isinstance(node, ast.keyword) and node.arg == "until":
        yield "until=None"


def inconsistent(node: ast.AST) -> Iterator[str]:
    """Read what an old leader may answer."""
    if isinstance(node, ast.keyword) and node.arg == "options" and "CONSISTENT" in ast.unparse(node.value):
        yield "options=None"


def silenced(node: ast.AST) -> Iterator[str]:
    """End at a failure that is to be outlived."""
    if isinstance(node, ast.ExceptHandler) and not any(
        isinstance(each, ast.Raise | ast.Return) for each in node.body
    ):
        yield "return"


OPERATORS: dict[str, Operator] = {
    each.__name__: each
    for each in (
        compared,
        joined,
        negated,
        counted,
        bounded,
        numbered,
        conditioned,
        uncalled,
        unwoken,
        stale,
        left,
        received,
        unguarded,
        widened,
        unshielded,
        late,
        inconsistent,
        silenced,
    )
}
OWN = (
    "unwoken",
    "stale",
    "received",
    "unguarded",
    "widened",
    "unshielded",
    "late",
    "inconsistent",
    "silenced",
)
"""Those that general tools lack."""


def places(text: str) -> list[Place]:
    """Return all that can be changed in a module, in the order of its text."""
    lines = _starts(text)
    found: list[Place] = []
    seen: dict[tuple[str, str, str, str], int] = {}
    for function, node in _functions(ast.parse(text)):
        scope = lines[node.lineno - 1], lines[node.end_lineno or node.lineno]
        clock = _clock_of(node)
        for piece in _pieces(node):
            for name, operator in OPERATORS.items():
                target = _replaced(piece, name)
                for becomes in operator(piece):
                    if becomes == _NOW:
                        if not clock:
                            continue
                        becomes = clock  # noqa: PLW2901 - what stands there in this function
                    start, end = _span(target, lines, text)
                    was = text[start:end]
                    mark = function, name, was, becomes
                    seen[mark] = number = seen.get(mark, 0) + 1
                    first, last = target.lineno, target.end_lineno or target.lineno
                    found.append(Place(*mark, number, first, last, start, end, scope))
    return found


def _clock_of(function: Function) -> str:
    """Return how a function asks for the time; empty where it can't, as an undefined name proves nothing."""
    if any(argument.arg == "io" for argument in function.args.args):
        return _NOW
    asked = (
        ast.unparse(node)
        for node in ast.walk(function)
        if isinstance(node, ast.Call)
        and not node.args
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"now", "monotonic"}
    )
    return next(asked, "")


def _replaced(piece: ast.AST, operator: str) -> ast.expr | ast.stmt:
    """Return the node whose text is replaced: a condition's test, the end of a handler, or it itself."""
    if operator == "conditioned" and isinstance(piece, ast.If | ast.IfExp | ast.While):
        return piece.test
    if isinstance(piece, ast.ExceptHandler):
        return piece.body[-1]
    return piece  # type: ignore[return-value]


def _functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    def walk(
        body: list[ast.stmt], prefix: str
    ) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
        for each in body:
            if isinstance(each, ast.ClassDef):
                yield from walk(each.body, f"{prefix}{each.name}.")
            elif isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name != "__repr__":
                yield f"{prefix}{each.name}", each

    return walk(tree.body, "")


def _pieces(function: Function) -> Iterator[ast.AST]:
    """Yield what a function runs: not its annotations, its docstring, or texts for people."""
    waiting: list[ast.AST] = list(reversed(function.body))
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        yield node
        children = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.AnnAssign):
            children = [node.value] if node.value is not None else []
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            children = list(node.body)
        if isinstance(node, ast.JoinedStr):
            children = []
        waiting.extend(reversed(children))


def _starts(text: str) -> list[int]:
    starts, offset = [0], 0
    for line in text.splitlines(keepends=True):
        offset += len(line)
        starts.append(offset)
    return starts


def _span(node: ast.expr | ast.stmt, lines: list[int], text: str) -> tuple[int, int]:
    """Return a node's place in the text; columns count bytes."""

    def offset(line: int, column: int) -> int:
        start = lines[line - 1]
        whole = text[start : lines[line]].encode()
        return start + len(whole[:column].decode())

    return offset(node.lineno, node.col_offset), offset(node.end_lineno or 0, node.end_col_offset or 0)


def _awaited(node: ast.expr) -> ast.expr:
    return node.value if isinstance(node, ast.Await) else node


def _wakes(node: ast.Expr) -> bool:
    call = _awaited(node.value)
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in _WAKES


def _is_text(node: ast.BinOp) -> bool:
    sides = (node.left, node.right)
    return any(isinstance(side, ast.JoinedStr | ast.Constant) and not _is_number(side) for side in sides)


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


def _is_guard(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _GUARDS


def _with_parts(node: ast.Call | ast.Tuple | ast.List, parts: list[ast.expr]) -> str:
    texts = list(map(ast.unparse, parts))
    if isinstance(node, ast.Call):
        return f"{ast.unparse(node.func)}({', '.join([*texts, *map(ast.unparse, node.keywords)])})"
    inside = ", ".join(texts)
    return f"({inside},)" if isinstance(node, ast.Tuple) else f"[{inside}]"
