"""Visit every state that a small model can reach, and say what is wrong in the first bad one.

Rules
- A model is its first state, the steps that lead on from a state, and whether a state is a good end. A step
  that breaks a safety rule leads to a `Broken`.
- Breadth first, so that a story is as short as any.
- Progress: from every state a good end can be reached. A state from which none can is a deadlock or a round
  dance that nothing ends.
- States that differ in nothing that matters are one: `state` values must be equal then, which is the model's
  to see to.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

S = TypeVar("S", bound="Hashable")


@dataclass(frozen=True, slots=True)
class Broken:
    """A safety rule that a step broke."""

    rule: str


@dataclass(frozen=True, slots=True)
class Step(Generic[S]):
    """One thing that can happen: its name, and what becomes of the state."""

    name: str
    after: S | Broken


class Model(Protocol[S]):
    """What can be explored."""

    def first(self) -> S:
        """Return the state in which everything begins."""
        ...

    def steps(self, state: S, /) -> Iterable[Step[S]]:
        """Yield all that can happen in a state."""
        ...

    def is_good_end(self, state: S, /) -> bool:
        """Return whether nothing is left to do, and nothing was left behind."""
        ...


@dataclass(frozen=True, slots=True)
class Explored:
    """What was found: ``broken`` names the rule, and ``story`` the steps that lead there."""

    states: int
    steps: int
    names: frozenset[str]
    broken: str = ""
    story: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n  ".join((f"{self.broken or 'sound'} ({self.states} states)", *self.story))


def explore(model: Model[S], *, most: int = 2_000_000) -> Explored:
    """Visit every state; stop at the first broken rule. ``most`` states are a model that is too large."""
    first = model.first()
    came: dict[S, tuple[S, str] | None] = {first: None}
    before: dict[S, list[S]] = {}
    good: list[S] = []
    names: set[str] = set()
    steps = 0
    todo = deque([first])
    while todo:
        state = todo.popleft()
        if model.is_good_end(state):
            good.append(state)
        for step in model.steps(state):
            steps += 1
            names.add(step.name.partition(" ")[2])
            if isinstance(step.after, Broken):
                story = (*_story(came, state), step.name)
                return Explored(len(came), steps, frozenset(names), step.after.rule, story)
            before.setdefault(step.after, []).append(state)
            if step.after not in came:
                if len(came) >= most:
                    raise RuntimeError(f"more than {most} states")
                came[step.after] = (state, step.name)
                todo.append(step.after)
    ends = _leading_to(good, before)
    stuck = next((state for state in came if state not in ends), None)
    if stuck is not None:
        return Explored(
            len(came), steps, frozenset(names), "progress", (*_story(came, stuck), f"stuck: {stuck}")
        )
    return Explored(len(came), steps, frozenset(names))


def _leading_to(good: Iterable[S], before: dict[S, list[S]]) -> set[S]:
    found = set(good)
    todo = list(found)
    while todo:
        for state in before.get(todo.pop(), ()):
            if state not in found:
                found.add(state)
                todo.append(state)
    return found


def _story(came: dict[S, tuple[S, str] | None], state: S) -> tuple[str, ...]:
    names = []
    while (step := came[state]) is not None:
        state, name = step
        names.append(name)
    return tuple(reversed(names))
