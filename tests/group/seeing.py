"""Following a group in a thread, and waiting for what it is to show."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from tests.election.waiting import until

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from consul_coord import Group, Members


class Seen:
    """The states that a watch has given."""

    def __init__(self, group: Group) -> None:
        self.states: list[Members] = []
        self._watch = group.watch()
        self._thread = threading.Thread(target=self._follow)

    def _follow(self) -> None:
        for result in self._watch:
            self.states.append(result.value)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.close()
        self._thread.join()

    @property
    def present(self) -> set[str] | None:
        """Who is there by the latest state; None before the first."""
        return {member.id for member in self.states[-1].all} if self.states else None

    def until_present(self, *members: str) -> None:
        """Wait until these are the members."""
        until(lambda: self.present == set(members), f"{members} are there")

    @property
    def news(self) -> list[tuple[list[str], list[str], list[str]]]:
        """Who joined, left and changed, state by state."""
        return [
            (
                [one.id for one in state.joined],
                [one.id for one in state.left],
                [one.id for one in state.changed],
            )
            for state in self.states
        ]
