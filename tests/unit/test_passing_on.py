"""What a facade is given gets to the programs that do the work, and their answers come back: in both worlds.

The client's runner only notes what it is asked to run. Nothing is sent.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import inspect
import pickle
import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import consul_coord as cc
from consul_coord.base_client import require
from consul_coord.io import Signal
from consul_coord.recipes.client import ClientState
from consul_coord.recipes.hold.grant import Handle
from consul_coord.recipes.once.record import Record
from tests.unit.test_times import NOBODY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WORLDS = ("", "Async")
WAYS = ("run", "call", "finish", "alone", "perform", "close")
"""Of a runner: how it is asked for something."""
SPEC = cc.SessionSpec(ttl=77.0, lock_delay=7.0)
RECORD = Record("s0", failed=False, by="someone", at=17.0, fence=11)
HOLDERS = (cc.Holder("first"), cc.Holder("second"))


@dataclasses.dataclass
class Asked:
    """One thing that a runner was asked for."""

    way: str
    program: Any
    args: tuple[Any, ...]
    given: dict[str, Any]
    interrupt: Any = None
    """The object that ends the call from outside."""

    @property
    def name(self) -> str:
        return getattr(self.program, "__name__", "")

    def plain(self) -> list[object]:
        """Return the arguments without a name that are values."""
        return [arg for arg in self.args if isinstance(arg, str | bytes | int | float | cc.SessionSpec)]

    def picture(self) -> set[tuple[str, str]]:
        """Return all that is in what was given: names with what they have, however deep."""
        return set(_pictured("", [self.program, *self.args, self.given], set()))


def _pictured(name: str, value: Any, seen: set[int]) -> Iterator[tuple[str, str]]:
    if value is None or isinstance(value, str | bytes | int | float | cc.SessionSpec) or callable(value):
        yield name, repr(value)
    elif id(value) in seen:
        return
    seen.add(id(value))
    inner: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        inner = [(str(key), each) for key, each in value.items()]
    elif isinstance(value, list | tuple | set | frozenset):
        inner = [(name, each) for each in value]
    elif isinstance(value, partial):
        inner = [(name, each) for each in (value.args, value.keywords)]
    elif inspect.ismethod(value):
        inner = [(name, value.__self__)]
    elif type(value).__module__.startswith(("consul_coord.recipes", "consul_coord.http")) and not isinstance(
        value, ClientState
    ):
        slots = [each for kind in inspect.getmro(type(value)) for each in getattr(kind, "__slots__", ())]
        names = {*slots, *getattr(value, "__dict__", {})}
        inner = [(each.strip("_"), getattr(value, each, None)) for each in sorted(names)]
    for each, found in inner:
        yield from _pictured(each, found, seen)


class World:
    """A client whose runner notes what it is asked for, and answers with what a test says."""

    def __init__(self, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._prefix = prefix
        self.client: Any = self.kind("Client")(NOBODY, datacenter="dc7")
        self.asked: list[Asked] = []
        self.answer: Any = object()
        self.runner = runner = require(self.client, self.kind("Client"), "a test")
        for way in WAYS:
            monkeypatch.setattr(runner, way, partial(self._note, way))

    def kind(self, name: str) -> Any:
        return getattr(
            cc, self._prefix + name if name != "every" else ("async_every" if self._prefix else name)
        )

    def _note(self, way: str, *args: Any, **given: Any) -> Any:
        interrupt, rest = (args[0], args[1:]) if way == "run" else (None, args)
        program, args = (None, rest) if way == "close" else (rest[0], rest[1:])
        self.asked.append(Asked(way, program, args, given, interrupt))
        return self._answered() if self._prefix else self._told()

    async def _answered(self) -> Any:
        return self._told()

    def _told(self) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def settle(self, found: Any) -> Any:
        async def main() -> Any:
            return await found

        return asyncio.run(main()) if inspect.isawaitable(found) else found

    def last(self) -> Asked:
        return self.asked[-1]


@pytest.fixture(params=WORLDS, ids=["blocking", "async"])
def world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(request.param, monkeypatch)


MADE: dict[str, Callable[..., Any]] = {
    "Lock": lambda world, **given: world.kind("Lock")(world.client, "k", **given),
    "ReentrantLock": lambda world, **given: world.kind("ReentrantLock")(world.client, "k", **given),
    "MultiLock": lambda world, **given: world.kind("MultiLock")(world.client, ["k", "l"], **given),
    "ReadWriteLock": lambda world, **given: world.kind("ReadWriteLock")(world.client, "k", **given),
    "reading": lambda world, **given: world.kind("ReadWriteLock")(world.client, "k", **given).read,
    "writing": lambda world, **given: world.kind("ReadWriteLock")(world.client, "k", **given).write,
    "Semaphore": lambda world, **given: world.kind("Semaphore")(world.client, "k", 7, **given),
    "LeaderElection": lambda world, **given: world.kind("LeaderElection")(world.client, "k", **given),
    "Once": lambda world, **given: world.kind("Once")(world.client, "k", **given),
    "Group": lambda world, **given: world.kind("Group")(world.client, "k", **{"id": "me"} | given),
    "Partitioner": lambda world, partitions=3, **given: world.kind("Partitioner")(
        world.kind("Group")(world.client, "k", id="me"), partitions, **given
    ),
}
Row = tuple[str, str, tuple[Any, ...], dict[str, Any], str, list[Any]]
CALLS: list[Row] = [
    # kind, method, arguments, settings, program, and what of the arguments that has no name it gets
    *(
        (kind, "break_lock", ("s1",), {"how": how}, "break_lock", ["s1"])
        for kind in ("Lock", "MultiLock")
        for how in ("release", "destroy")
    ),
    *(
        (side, "break_lock", ("s1",), {"how": "destroy"}, "break_in", ["s1"])
        for side in ("reading", "writing")
    ),
    *((kind, "holder", (), {}, "holder", []) for kind in ("Lock", "MultiLock")),
    *((kind, "locked", (), {}, "is_locked", []) for kind in ("Lock", "MultiLock")),
    *((kind, "destroy", (), {}, "destroy", []) for kind in ("Lock", "MultiLock", "Semaphore")),
    *((side, "destroy", (), {}, "is_unused", []) for side in ("reading", "writing")),
    *(
        (kind, "contenders", (), {}, "contenders", [])
        for kind in ("Lock", "MultiLock", "ReadWriteLock", "reading", "writing", "Semaphore")
    ),
    *((kind, "holders", (), {}, "holders", []) for kind in ("ReadWriteLock", "Semaphore")),
    ("Lock", "release", (), {}, "release_own", []),
    ("Semaphore", "release", (), {}, "release_own", []),
    ("Semaphore", "position", (), {}, "position", []),
    ("Semaphore", "resize", (9,), {}, "resize", [9]),
    ("LeaderElection", "candidates", (), {}, "contenders", []),
    ("LeaderElection", "resign", (), {"pause": 2.5}, "resign", []),
    ("LeaderElection", "resign", (), {"pause": 0.0}, "resign", []),
    *(
        ("LeaderElection", "wait_for_loss", (), {"timeout": timeout}, "wait_for_loss", [])
        for timeout in (2.5, 0.0)
    ),
    ("Once", "forget", (), {}, "forget", []),
    *(("Group", "join", (), {"timeout": timeout}, "join", []) for timeout in (2.5, 0.0, None)),
    ("Group", "update", ("new",), {}, "update", ["k/members/3/me", b"new"]),
    ("Group", "members", (), {}, "members", []),
    ("Partitioner", "owners", (), {}, "holders", []),
]
NOTHING = {"resize", "join", "update"}
"""What returns nothing."""


@pytest.mark.parametrize(
    ("kind", "method", "args", "given", "program", "values"),
    CALLS,
    ids=[f"{row[0]}.{row[1]}" for row in CALLS],
)
def test_a_call_passes_on_what_it_is_given_and_returns_the_answer(  # noqa: PLR0917 - the columns of a table
    world: World,
    kind: str,
    method: str,
    args: tuple[Any, ...],
    given: dict[str, Any],
    program: str,
    values: list[object],
) -> None:
    found = world.settle(getattr(MADE[kind](world), method)(*args, **given))
    (asked,) = world.asked
    assert asked.name == program
    assert asked.plain() == values
    assert asked.given.items() >= given.items()
    if method not in NOTHING:
        assert found is world.answer


AFTERWARDS = [
    ("Group", "join", "leave", {"timeout": 2.5}),
    ("Partitioner", "start", "stop", {"timeout": 2.5}),
    ("LeaderElection", "start", "stop", {"timeout": 2.5}),
]


@pytest.mark.parametrize(("kind", "begin", "end", "given"), AFTERWARDS)
def test_an_end_is_given_its_time_and_returns_the_answer(
    world: World, kind: str, begin: str, end: str, given: dict[str, Any]
) -> None:
    thing = MADE[kind](world)
    world.settle(getattr(thing, begin)())
    found = world.settle(getattr(thing, end)(**given))
    assert (world.last().way, world.last().name, world.last().given) == ("finish", end, given)
    assert kind != "Group" or found is world.answer


def test_what_never_began_has_nothing_to_end(world: World) -> None:
    assert world.settle(MADE["Group"](world).leave()) is cc.ReleaseOutcome.ALREADY_LOST
    world.settle(MADE["Partitioner"](world).stop())
    world.settle(MADE["LeaderElection"](world).stop())
    assert world.asked == []


@pytest.mark.parametrize("side", ["reading", "writing"])
def test_a_side_tells_the_first_who_is_in(world: World, side: str) -> None:
    world.answer = HOLDERS
    assert world.settle(MADE[side](world).holder()) is HOLDERS[0]
    assert world.settle(MADE[side](world).locked()) is True
    world.answer = ()
    assert world.settle(MADE[side](world).holder()) is None
    assert world.settle(MADE[side](world).locked()) is False


def _plain(*_: object) -> float:
    return 1.0


VALUE: dict[str, tuple[object, object]] = {"value": ("shown", b"shown"), "session": (SPEC, SPEC)}
FLAGS: dict[str, tuple[object, object]] = {"flags": (77, 77)}
ACCEPTS: dict[str, tuple[object, object]] = {"accept_flags": ([78], 78)}
SETTINGS: dict[str, tuple[str, dict[str, Any], dict[str, tuple[object, object]]]] = {
    # by kind: a call, its settings, and for each setting of the constructor what is given and what gets there
    "Lock": ("holder", {}, VALUE | FLAGS | ACCEPTS | {"fair": (True, True), "remove": (True, True)}),
    "MultiLock": ("holder", {}, VALUE | FLAGS | ACCEPTS | {"remove": (True, True)}),
    "reading": ("contenders", {}, VALUE | FLAGS),
    "writing": ("contenders", {}, VALUE | FLAGS),
    "Semaphore": ("holders", {}, VALUE | FLAGS | ACCEPTS | {"fair": (True, True)}),
    "LeaderElection": (
        "start",
        {},
        VALUE
        | ACCEPTS
        | {
            "on_lost": (_plain, _plain),
            "on_change": (_plain, _plain),
            "health": (_plain, _plain),
            "health_interval": (7.5, 7.5),
            "max_hold": (70.5, 70.5),
            "priority_delay": (6.5, 6.5),
            "retry_wait": ((0.25, 8.5), 8.5),
        },
    ),
    "Once": ("begin", {"slot": "s1"}, VALUE | {"retry_failed": (False, False)}),
    "Group": (
        "join",
        {},
        {
            "id": ("other", "other"),
            "value": ("shown", b"shown"),
            "evictable": (True, cc.LossReason.KEY_DELETED),
        },
    ),
    "Partitioner": (
        "start",
        {},
        {
            "partitions": (["a", "b"], "b"),
            "settle": (0.7, 0.7),
            "handover": (7.5, 7.5),
            "bound": (1.75, 1.75),
            "weight": (_plain, _plain),
        },
    ),
}


@pytest.mark.parametrize(
    ("kind", "setting"), [(kind, name) for kind, (_, _, settings) in SETTINGS.items() for name in settings]
)
def test_each_setting_of_a_constructor_gets_to_the_programs(world: World, kind: str, setting: str) -> None:
    world.answer = RECORD
    method, given, settings = SETTINGS[kind]
    value, arrives = settings[setting]
    pictures: list[set[tuple[str, str]]] = []
    for made_with in ({}, {setting: value}):
        world.settle(getattr(MADE[kind](world, **made_with), method)(**given))
        pictures.append(world.last().picture())
    assert repr(arrives) in {text for _, text in pictures[1] - pictures[0]}


NOTHING_GIVEN: dict[str, list[tuple[object, object]]] = {
    # by setting: what is empty or zero, and no word for "left out", and what gets there
    "value": [(b"", b""), ("", b"")],
    "flags": [(0, 0)],
    "settle": [(0.0, 0.0)],
    "handover": [(0.0, 0.0)],
    "retry_wait": [((0.0, 0.0), (0.0, 0.0))],
}


@pytest.mark.parametrize(
    ("kind", "setting", "given", "arrives"),
    [
        (kind, name, *row)
        for kind, (_, _, settings) in SETTINGS.items()
        for name, rows in NOTHING_GIVEN.items()
        if name in settings
        for row in rows
    ],
)
def test_a_setting_that_is_empty_or_zero_is_not_taken_for_one_that_is_left_out(
    world: World, kind: str, setting: str, given: object, arrives: object
) -> None:
    world.answer = RECORD
    method, of_call, _ = SETTINGS[kind]
    world.settle(getattr(MADE[kind](world, **{setting: given}), method)(**of_call))
    arrived = {text for name, text in world.last().picture() if name == setting}
    assert arrived == ({repr(arrives)} if not isinstance(arrives, tuple) else set(map(repr, arrives)))


@pytest.mark.parametrize("name", ["on_acquired", "on_released"])
def test_a_partitioners_function_is_given_the_partition_and_a_hold_like_any(world: World, name: str) -> None:
    given: list[tuple[str, Any]] = []

    def function(partition: str, hold: Any) -> None:
        given.append((partition, hold))

    world.settle(MADE["Partitioner"](world, **{name: function}).start())
    grant = SimpleNamespace(key="a", fence=7)
    getattr(world.last().args[0]._plan, name)("a", grant)
    ((partition, hold),) = given
    assert partition == "a"
    assert isinstance(hold, world.kind("Hold"))
    assert hold.fence == 7


def test_the_table_has_every_setting_of_a_constructor() -> None:
    left_out = {
        "client",
        "key",
        "keys",
        "prefix",
        "limit",
        "group",
        "on_elected",
        "on_acquired",
        "on_released",
    }
    kinds = {"reading": "ReadWriteLock", "writing": "ReadWriteLock"}
    for kind, (_, _, settings) in SETTINGS.items():
        known = inspect.signature(getattr(cc, kinds.get(kind, kind))).parameters.keys()
        assert settings.keys() == known - left_out, kind


@pytest.mark.parametrize(("kind", "begin", "end", "given"), AFTERWARDS)
def test_what_a_parent_process_began_is_not_a_childs(  # noqa: PLR0917 - fixtures and a table
    world: World, monkeypatch: pytest.MonkeyPatch, kind: str, begin: str, end: str, given: dict[str, Any]
) -> None:
    thing = MADE[kind](world)
    world.settle(getattr(thing, begin)())
    other = require(world.kind("Client")(NOBODY), world.kind("Client"), "a test")
    monkeypatch.setattr(world.runner, "core", other.core)  # as in a forked child
    world.asked.clear()
    assert {name: getattr(thing, name) for name in READABLE[kind]} == READABLE[kind]
    world.settle(getattr(thing, end)(**given))
    assert world.asked == []
    world.settle(getattr(thing, begin)())
    assert world.last().name == begin


READABLE: dict[str, dict[str, object]] = {
    "Lock": {"key": "k"},
    "MultiLock": {"key": "k", "keys": ("k", "l")},
    "ReadWriteLock": {"key": "k"},
    "reading": {"key": "k"},
    "writing": {"key": "k"},
    "Semaphore": {"prefix": "k", "limit": 7},
    "LeaderElection": {
        "key": "k",
        "is_leader": False,
        **dict.fromkeys(("term", "leadership", "leader", "leader_age", "problem")),
    },
    "Once": {"key": "k"},
    "Group": {"prefix": "k", "id": "me", "joined": False, "problem": None},
    "Partitioner": {"partitions": ("0", "1", "2"), "owned": {}},
}


@pytest.mark.parametrize("kind", READABLE)
def test_each_property_is_readable_before_anything_was_sent(world: World, kind: str) -> None:
    thing = MADE[kind](world)
    assert {name: getattr(thing, name) for name in READABLE[kind]} == READABLE[kind]
    assert world.asked == []


TIMES = {"timeout": 2.5, "max_hold": 3.5}


@pytest.mark.parametrize("way", ["begin", "run"])
@pytest.mark.parametrize(
    ("given", "arrives"),
    [
        ({"slot": "s7"}, {("slot", "'s7'"), ("period", "None")}),
        ({"period": 60, "align": False}, {("slot", "None"), ("period", "60")}),
    ],
)
def test_once_passes_on_when_to_run(
    world: World, way: str, given: dict[str, Any], arrives: set[tuple[str, str]]
) -> None:
    world.answer = RECORD
    args = (lambda _run: None,) if way == "run" else ()
    found = world.settle(getattr(MADE["Once"](world), way)(*args, **given, **TIMES))
    assert found == RECORD.result()
    assert world.last().given.items() >= TIMES.items()
    assert arrives <= world.last().picture()


def test_once_tells_what_is_recorded(world: World) -> None:
    world.answer = RECORD
    assert world.settle(MADE["Once"](world).last()) == RECORD.result()
    world.answer = None
    assert world.settle(MADE["Once"](world).last()) is None


@pytest.mark.parametrize(
    ("setting", "value", "arrives"),
    [
        ("value", "shown", b"shown"),
        ("session", SPEC, SPEC),
        ("retry_failed", False, False),
        ("align", False, None),
        ("timeout", 2.5, 2.5),
        ("max_hold", 3.5, 3.5),
    ],
)
def test_a_decorated_function_has_every_setting_of_the_decorator(
    world: World, setting: str, value: object, arrives: object
) -> None:
    world.answer = RECORD
    pictures: list[set[tuple[str, str]]] = []
    for given in ({}, {setting: value}):
        decorate = world.kind("every")(world.client, "k", period=60, **given)
        assert world.settle(decorate(lambda: None)()) == RECORD.result()
        pictures.append(world.last().picture())
    assert repr(arrives) in {text for _, text in pictures[1] - pictures[0]}


@pytest.mark.parametrize("name", ["kv.watch", "kv.watch_tree", "session.watch"])
@pytest.mark.parametrize(("setting", "value"), [("wait", 7.5), ("min_interval", 1.25)])
def test_a_watch_has_its_times(world: World, name: str, setting: str, value: float) -> None:
    facade, method = name.split(".")
    watch = getattr(getattr(world.client, facade), method)("k", **{setting: value})
    found = world.settle(watch.__anext__() if hasattr(watch, "__anext__") else next(watch))
    assert found is world.answer
    assert repr(value) in {text for _, text in world.last().picture()}


def test_a_closed_watch_has_ended_and_asks_nothing(world: World) -> None:
    watch = world.client.kv.watch("k")
    assert repr(watch).endswith("Watch: open>")
    world.settle(watch.close())
    assert repr(watch).endswith("Watch: closed>")
    with pytest.raises((StopIteration, StopAsyncIteration)):
        world.settle(watch.__anext__() if hasattr(watch, "__anext__") else next(watch))
    assert world.asked == []


@pytest.mark.parametrize(
    ("call", "program", "values", "given"),
    [
        (lambda client: client.session.named("n", timeout=2.5), "named", ["n"], {"timeout": 2.5}),
        (lambda client: client.session.named("n"), "named", ["n"], {"timeout": 10.0}),
        (
            lambda client: client.session.destroy_named("n", timeout=2.5),
            "destroy_named",
            ["n"],
            {"timeout": 2.5},
        ),
        (lambda client: client.kv.update("k", _plain, timeout=2.5), "update", ["k"], {"timeout": 2.5}),
        (lambda client: client.txn(cc.TxnOp.get("k"), timeout=2.5), "", [], {"timeout": 2.5}),
        (lambda client: client.close(timeout=2.5), "", [2.5], {}),
        (lambda client: client.close(), "", [5.0], {}),
    ],
)
def test_a_clients_own_calls_pass_on_what_they_are_given(
    world: World, call: Callable[[Any], Any], program: str, values: list[object], given: dict[str, Any]
) -> None:
    found = world.settle(call(world.client))
    asked = world.last()
    assert (asked.name, asked.plain()) == (program, values)
    assert asked.given.items() >= given.items()
    assert asked.way == "close" or found is world.answer


def test_a_session_is_kept_as_its_settings_say(world: World) -> None:
    world.settle(world.client.keep_session(SPEC, resume="text"))
    assert (world.last().name, world.last().plain(), world.last().given) == (
        "open_session",
        [SPEC],
        {"resume": "text"},
    )


SHOWN = {
    "Lock": "{0}Lock on 'k' of {1}",
    "ReentrantLock": "{0}ReentrantLock on 'k' of {1}",
    "MultiLock": "{0}MultiLock on 'k', 'l' of {1}",
    "ReadWriteLock": "{0}ReadWriteLock on 'k' of {1}",
    "reading": "{0}RwSide to read 'k' of {1}",
    "writing": "{0}RwSide to write 'k' of {1}",
    "Semaphore": "{0}Semaphore of 7 on 'k' of {1}",
    "LeaderElection": "{0}LeaderElection of 'k': not leading",
    "Once": "{0}Once on 'k' of {1}",
    "Group": "{0}Group 'k': not joined",
    "Partitioner": "{0}Partitioner of 'k': 0 of 3",
}


@pytest.mark.parametrize("kind", SHOWN)
def test_each_object_shows_what_it_is_and_of_which_client(world: World, kind: str) -> None:
    prefix = world.kind("Lock").__name__.removesuffix("Lock")
    shown = SHOWN[kind].format(prefix, f"<{prefix}Client of {NOBODY}>")
    assert repr(MADE[kind](world)) == f"<{shown}>"
    assert world.asked == []


def held(**given: Any) -> Any:
    """Return a grant that lasts."""
    facts = {"key": "k", "session": "s1", "fence": 7, "is_held": lambda _now: True, "over": Signal()}
    return SimpleNamespace(**facts | given)


def test_a_candidate_shows_its_term_while_it_leads(world: World) -> None:
    election = MADE["LeaderElection"](world)
    world.settle(election.start())
    world.last().given["candidacy"].handle = SimpleNamespace(grant=held())
    assert repr(election).endswith("LeaderElection of 'k': leading, term 7>")


def test_a_member_shows_its_id(world: World) -> None:
    group = MADE["Group"](world)
    world.settle(group.join())
    membership = world.last().args[0]
    assert repr(group).endswith("Group 'k': not joined>")
    membership.is_joined = lambda _now: True
    assert repr(group).endswith("Group 'k': member 'me'>")


def test_a_partitioner_shows_how_many_it_owns(world: World) -> None:
    partitioner = MADE["Partitioner"](world)
    world.settle(partitioner.start())
    world.last().args[0].owned = lambda _now: {"0": held(), "2": held()}
    assert repr(partitioner).endswith("Partitioner of 'k': 2 of 3>")
    assert partitioner.group.prefix == "k"


@pytest.mark.parametrize(("is_lost", "shown"), [(True, "LossEvent: set>"), (False, "LossEvent: not set>")])
def test_the_event_of_a_loss_shows_whether_it_is_set(world: World, is_lost: bool, shown: str) -> None:
    hold = world.kind("Hold")(world.runner, world.runner.core, held(is_lost=lambda _now: is_lost))
    assert repr(hold.lost).endswith(shown)
    assert hold.lost.is_set() is is_lost


def test_a_kept_session_tells_how_long_it_lasts(world: World) -> None:
    lease = SimpleNamespace(remaining=lambda now: 100.0 - now)
    world.runner.now = lambda: 92.75
    kept = world.kind("KeptSession")(world.runner, world.runner.core, SimpleNamespace(id="s1", lease=lease))
    assert kept.remaining() == 7.25
    assert repr(kept).endswith("KeptSession s1: 7.2 s left>")


def leadership(world: World) -> Any:
    candidacy = SimpleNamespace(client=world.runner.core)
    return world.kind("Leadership")(world.runner, candidacy, held())


def test_a_leadership_passes_on_what_it_is_given(world: World) -> None:
    world.settle(leadership(world).ensure(2.5))
    assert (world.last().name, world.last().given) == ("ensure", {"seconds": 2.5})
    world.settle(leadership(world).put("new"))
    assert (world.last().name, world.last().plain()) == ("proclaim", [b"new"])


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        (
            cc.LockLost("gone", key="k", session="s1", fence=7, reason=cc.LossReason.KEY_DELETED),
            cc.LossReason.KEY_DELETED,
        ),
        (cc.NotHeld("released", key="k"), cc.LossReason.RESIGNED),
    ],
)
def test_a_leadership_that_can_not_be_prolonged_is_told_as_such(
    world: World, raised: Exception, reason: cc.LossReason
) -> None:
    world.answer = raised
    with pytest.raises(cc.LeadershipLost) as told:
        world.settle(leadership(world).ensure(2.5))
    assert (told.value.reason, told.value.fence) == (reason, 7)


def test_a_run_tells_its_slot(world: World) -> None:
    turn = SimpleNamespace(slot="s7", handle=SimpleNamespace(grant=held()))
    world.answer = turn
    run = world.settle(MADE["Once"](world).begin(slot="s1"))
    assert run.slot == "s7"
    assert run.fence == 7


def test_a_member_without_a_given_id_has_one_name_for_each_process(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, another = (MADE["Group"](world, id=None) for _ in range(2))
    name = group.id
    assert group.id == name != another.id
    other = require(world.kind("Client")(NOBODY), world.kind("Client"), "a test")
    monkeypatch.setattr(world.runner, "core", other.core)  # as in a forked child
    assert group.id != name
    assert MADE["Group"](world, id="mine").id == "mine"


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_group_refuses_to_be_duplicated(world: World, duplicate: Callable[[Any], object]) -> None:
    with pytest.raises(TypeError, match="Group can't be pickled: make one in each process"):
        duplicate(MADE["Group"](world))


def test_a_partitioner_needs_a_group_of_its_own_world(world: World) -> None:
    ours = world.kind("Group")
    theirs: tuple[Any, Any] = (cc.AsyncGroup, cc.AsyncClient) if ours is cc.Group else (cc.Group, cc.Client)
    for given in (None, "k", theirs[0](theirs[1](NOBODY), "k")):
        refused = f"Partitioner needs a group, made with {ours.__name__}, not {given!r}"
        with pytest.raises(cc.InvalidArgument, match=re.escape(refused)):
            world.kind("Partitioner")(given, 3)


WAITS: dict[str, Callable[[Any], object]] = {
    **dict.fromkeys(
        ("Lock", "MultiLock", "reading", "writing", "Semaphore"), lambda thing: thing.acquire(timeout=2.5)
    ),
    "Once": lambda thing: thing.begin(slot="s1"),
}


@pytest.mark.parametrize("kind", WAITS)
def test_cancel_ends_the_calls_that_wait_for_this_object_and_no_other(world: World, kind: str) -> None:
    thing, other = MADE[kind](world), MADE[kind](world)
    for each in (thing, thing, other):
        world.answer = RECORD if kind == "Once" else Handle(held(depth=0, left=False), None)
        world.settle(WAITS[kind](each))
    calls = [asked.interrupt for asked in world.asked]
    for call in calls:
        world.runner.core.calls.enter(call)
    thing.cancel()
    assert [call.signal.is_set() for call in calls] == [True, True, False]
    with pytest.raises(cc.AcquireCancelled, match="'k'"):
        calls[0].raise_if_fired()


INTERRUPTED: dict[str, Callable[[Any], object]] = {
    "Lock": lambda thing: thing.run(_nothing, interrupt=True),
    "Semaphore": lambda thing: thing.run(_nothing, interrupt=True),
    "Once": lambda thing: thing.run(_nothing, slot="s1", interrupt=True),
    "LeaderElection": lambda thing: thing.run(_nothing, interrupt=True),
}


def _nothing(_: object) -> None:
    pass


@pytest.mark.parametrize("kind", INTERRUPTED)
def test_only_in_blocking_code_a_loss_interrupts_the_main_thread_alone(world: World, kind: str) -> None:
    """There it is refused before anything is sent; on an event loop each block is cancelled at its loss."""
    world.answer = cc.AcquireCancelled("enough", key="k")
    with ThreadPoolExecutor(1) as threads:
        run = threads.submit(lambda: world.settle(INTERRUPTED[kind](MADE[kind](world))))
        error = run.exception()
    is_blocking = world.kind("Lock") is cc.Lock
    assert isinstance(error, cc.InvalidArgument if is_blocking else cc.AcquireCancelled)
    assert bool(world.asked) is not is_blocking
    assert not is_blocking or "main thread" in str(error)
