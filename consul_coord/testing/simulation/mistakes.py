"""The mistakes of users that are refused before anything is sent, and what is no mistake.

Rules
- A wrong setting raises InvalidArgument, or an error that is one; a right one does not.
- The error of a value that is too long names the longest one that there may be.
"""

from __future__ import annotations

import math
import re
from functools import partial
from typing import TYPE_CHECKING, Any

from consul_coord.errors import InvalidArgument, ValueTooLarge
from consul_coord.recipes.election.candidacy import ElectionPlan, lock_of
from consul_coord.recipes.group.members import GroupPlan
from consul_coord.recipes.group.membership import Membership
from consul_coord.recipes.partition.partitioning import PartitionPlan, names_of
from consul_coord.recipes.semaphore.semaphore import SemaphoreObject

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from consul_coord.testing.simulation.process import Process

    Case = tuple[str, Callable[[], object]]
    """A setting, and what makes something with it."""

TOO_LARGE = b"x" * 600_000
"""A value that no request can carry."""
MAKES_MISTAKES = 0.1
"""So often a user tries what is wrong, and what is right, before it begins."""
_ELECTION: Mapping[str, Any] = {
    "key": "lead/a",
    "retry_wait": (0.0, 1.0),
    "priority_delay": 0.0,
    "health_interval": 1.0,
    "on_elected": None,
    "on_lost": None,
    "on_change": None,
    "health": None,
}
_PARTITIONS: Mapping[str, Any] = {
    "group": GroupPlan("group/a"),
    "partitions": ("0", "1"),
    "settle": 1.0,
    "handover": 1.0,
    "bound": None,
    "weight": None,
    "on_acquired": None,
    "on_released": None,
}
_LOCK: Mapping[str, Any] = {"key": "lead/a", "value": b"", "session": None, "accept_flags": ()}


def _changed(make: Callable[..., object], right: Mapping[str, Any], name: str, value: object) -> object:
    return make(**{**right, name: value})


def _each(
    make: Callable[..., object], right: Mapping[str, Any], settings: Mapping[str, Sequence[object]]
) -> list[Case]:
    return [
        (
            f"{getattr(make, '__name__', make)} with {name}={value!r:.40}",
            partial(_changed, make, right, name, value),
        )
        for name, values in settings.items()
        for value in values
    ]


def _names(*kinds: object) -> list[Case]:
    return [(f"partitions {kind!r}", partial(names_of, kind)) for kind in kinds]


def _key(member: Any) -> object:  # noqa: ANN401 - anything
    return GroupPlan("group/a").key(member)


_NEGATIVE, _ENDLESS = -1.0, math.inf
_NO_NUMBERS = (0, -1, 1.0, True, None)
"""Values that no number of slots can be."""
WRONG_OF_CANDIDATES: list[Case] = [
    *_each(
        ElectionPlan,
        _ELECTION,
        {
            "retry_wait": ((2.0, 1.0), (_NEGATIVE, 1.0), (0.0, _ENDLESS), ("a", 1.0), 3.0),
            "priority_delay": (_NEGATIVE, _ENDLESS),
            "health_interval": (_NEGATIVE, 0.0, _ENDLESS),
            "on_lost": (1,),
            "on_change": (1,),
            "health": (1,),
            "max_hold": (_NEGATIVE, 0.0),
        },
    ),
    *_each(lock_of, _LOCK, {"key": ("", "a/../b"), "value": (TOO_LARGE,), "accept_flags": ((_NEGATIVE,),)}),
]
RIGHT_OF_CANDIDATES: list[Case] = [
    *_each(
        ElectionPlan, _ELECTION, {"retry_wait": ((1.0, 1.0),), "priority_delay": (2.0,), "max_hold": (0.5,)}
    ),
    *_each(lock_of, _LOCK, {"value": (None, b"x" * 1_000)}),
]
WRONG_OF_MEMBERS: list[Case] = [
    *_names(*(0, -1, True, 2.5, None, "ab", b"ab", (), ("a", "a"), ("a/b",), ("",), (1,))),
    *_each(
        PartitionPlan,
        _PARTITIONS,
        {
            "partitions": (("..",),),
            "settle": (_NEGATIVE, _ENDLESS),
            "handover": (_NEGATIVE, _ENDLESS),
            "bound": (0.9, math.nan, "2"),
            "weight": (1,),
        },
    ),
    ("a group without a name", partial(GroupPlan, "")),
    *((f"the member {name!r}", partial(_key, name)) for name in ("", "a/b", ".", 5)),
]
RIGHT_OF_MEMBERS: list[Case] = [
    *_names(1, 3, ("a",), ("a", "b"), ["b", "a"]),
    *_each(PartitionPlan, _PARTITIONS, {"settle": (0.0,), "handover": (0.0,), "bound": (1, 1.5)}),
    ("the member 'a b'", partial(_key, "a b")),
]


def check_longest(process: Process, what: str, make: Callable[[bytes], object]) -> None:
    """Judge the longest value that something may be made with, by what is said of a longer one."""

    def refused(size: int) -> ValueTooLarge | None:
        try:
            make(b"x" * size)
        except ValueTooLarge as error:
            return error
        return None

    most = longest_by(refused(len(TOO_LARGE)))
    if refused(most) is not None or refused(most + 1) is None:
        process.judge.convict("answers", f"the longest value of {what} of {process.name} is not {most} bytes")


def longest_by(refusal: ValueTooLarge | None) -> int:
    """Return the bytes of the longest value, which the refusal of a longer one names; 0 without one."""
    named = re.search(r"may have (\d+) bytes", str(refusal))
    return 0 if named is None else int(named[1])


def try_as_candidate(process: Process) -> None:
    """Judge what a candidate may be made with."""
    check_longest(process, "a candidate", partial(_changed, lock_of, _LOCK, "value"))
    _try(process, WRONG_OF_CANDIDATES, RIGHT_OF_CANDIDATES)


def try_as_member(process: Process) -> None:
    """Judge what a group, a member and partitions may be made with."""

    def of_value(value: bytes) -> object:
        plan = GroupPlan("group/a")
        return Membership(process.core, plan, "a", value, evictable=False, keeps=None)

    if names_of(2) != ("0", "1") or names_of(iter("ab")) != ("a", "b"):
        process.judge.convict("answers", f"partitions are named {names_of(2)}, {names_of(iter('ab'))}")
    check_longest(process, "a member", of_value)
    _try(process, WRONG_OF_MEMBERS, RIGHT_OF_MEMBERS)


def try_with_slots(process: Process, what: SemaphoreObject) -> None:
    """Judge how many slots a semaphore may have, and how many of them a permit may take."""

    def permits(*numbers: Any) -> list[Case]:  # noqa: ANN401 - anything
        return [(f"{number!r} slots of {what.limit}", partial(what.of, number)) for number in numbers]

    def limits(*numbers: Any) -> list[Case]:  # noqa: ANN401 - anything
        return [(f"a limit of {number!r}", partial(SemaphoreObject, what.plan, number)) for number in numbers]

    wrong = [*permits(*_NO_NUMBERS, what.limit + 1), *limits(*_NO_NUMBERS)]
    _try(process, wrong, [*permits(1, what.limit), *limits(1, 3)])


def _try(
    process: Process,
    wrong: Sequence[Case],
    right: Sequence[Case],
) -> None:
    for rows, is_right in ((wrong, False), (right, True)):
        for what, make in rows:
            try:
                make()
            except InvalidArgument as error:
                said = f"refused: {error}"
            else:
                said = ""
            # Another thread may have changed the limit while this one stood still.
            if (said == "") is not is_right and not process.is_behind:
                process.judge.convict("answers", f"{process.name} has {what}, which is {said or 'accepted'}")
