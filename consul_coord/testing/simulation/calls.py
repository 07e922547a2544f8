"""Users of a client's plain calls: they read, write and update keys, and make sessions of their own.

Rules
- A reading shows the state of a moment of its call. A call that reports that something is written, deleted or
  destroyed had that so at a moment. A check-and-set that is refused was one that the state refused.
- ``update`` is refused as often as others wrote, at most, and once if it may try once. The meaning of a
  transaction is in ``txn_rules``.
- How a call repeats what failed, and with which error it ends, is judged by ``diary``, and the rest by
  ``call_rules``.
- In calm runs a call sends one request, and ``update`` two.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any

from consul_coord.errors import (
    ConsulCoordError,
    DecodeError,
    RequestTimeout,
    ResponseError,
    TransportError,
    TxnFailed,
)
from consul_coord.http.endpoints import catalog, kv, session, status
from consul_coord.http.endpoints.session import NO_SESSION
from consul_coord.http.retry import ask
from consul_coord.http.update import update
from consul_coord.models import ReadOptions, SessionSpec, TxnOp
from consul_coord.recipes.session import handling
from consul_coord.server.gotext import SECOND
from consul_coord.testing.simulation.call_rules import COUNTED, session_kept, session_shown, shown
from consul_coord.testing.simulation.diary import Diary
from consul_coord.testing.simulation.dice import Dice
from consul_coord.testing.simulation.holding import Holder
from consul_coord.testing.simulation.txn_rules import is_result

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from consul_coord.http.messages import Call
    from consul_coord.io import IO
    from consul_coord.models import KVPair
    from consul_coord.server.records import Entry
    from consul_coord.testing.simulation.driver import SimIO
    from consul_coord.testing.simulation.past import Moment
    from consul_coord.testing.simulation.process import Process

KEYS = ("data/a", "data/b", "data/c/x", "data/c/y", "data/c/y z/ä?")
TREES = ("data/", "data/c/", "data/c/y", "data/none/")
TIMEOUTS = (0.7, 2.0, 6.0, 9.5)
"""Seconds that calls are given."""
UPDATES = 0.2
CLEANS_UP = 0.05
"""So often a user updates a key, and destroys all of its sessions."""
IDLE_SHARE = 0.2
"""The part of the processes with users of plain calls that are only looked at while anything goes wrong."""
RACES = 0.3
UPDATES_IN_RACES = 0.8
"""The part of the runs in which all update that key, and how often."""
NOWHERE = "dc9"
"""The name of no datacenter."""
MARK = "tool"
"""The name of users' sessions begins with it."""
_SURELY_NOT = ("ConnectFailed", "RateLimited", "TxnFailed", "PermissionDenied", "InvalidRequest", "NotFound")
"""The errors of calls that were not applied, besides those that say so."""


@dataclass(frozen=True, slots=True)
class Act:
    """One thing that a user does."""

    what: str
    call: Call[Any]
    fits: Callable[[Any, Sequence[Moment]], bool]
    """Whether an answer fits the states of the moments of the call."""
    writes: bytes | None = None
    """The value that it writes, which nothing else does."""
    fresh: bool = True
    """Whether it shows no older state than that."""
    refused: bool = False
    """Whether it can't be served, which the error is to say."""


class Prober(Holder):
    """Somebody who looks at a client's contact again and again, as a readiness probe does."""

    async def run(self, io: SimIO) -> None:
        """Look until the world is healed."""
        while not self.healed():
            self.judge.plain.look_at_contact(self.process)
            await io.sleep(self.rng.uniform(0.2, 1.0))

    async def calm_rounds(self, io: SimIO) -> None:
        """Look while others take their turns."""
        for _ in range(3):
            self.judge.plain.look_at_contact(self.process)
            await io.sleep(0.5)


def is_idle(process: Process) -> bool:
    """Return whether nothing is done with a client, except that it is looked at."""
    return Dice(process.seed, f"{process.name} is idle").chance(IDLE_SHARE)


class CallUser(Holder):
    """A user who reads and writes keys, and has sessions of its own."""

    def __init__(self, process: Process, actor: str, *, healed: Callable[[], bool]) -> None:
        super().__init__(process, actor, healed=healed)
        self._rules = self.judge.plain
        in_race = Dice(process.seed, "all update").chance(RACES)
        self._updates = UPDATES_IN_RACES if in_race else UPDATES
        self._number = 0
        self._sessions: list[str] = []
        self._name = f"{MARK} {process.name} {actor}"
        self._acts: tuple[Callable[[], Act], ...] = (
            *(self._get, self._get_raw, self._list, self._keys) * 2,
            *(self._put, self._cas, self._delete, self._delete_cas, self._delete_tree),
            *(self._read_together, self._write_together, self._write_together),
            *(self._create, self._info, self._sessions_of, self._renew, self._destroy),
            *(self._acquire, self._release, self._leader, self._nodes, self._elsewhere),
        )

    # -- what it does

    async def run(self, io: SimIO) -> None:
        """Do this and that until the world is healed."""
        idle = is_idle(self.process)
        while not self.healed():
            if not idle:
                await self._do_something(io)
            await io.sleep(self.rng.choice((0.0, self.rng.uniform(0.0, 0.3), self.rng.uniform(0.0, 1.2))))

    async def _do_something(self, io: SimIO) -> None:
        dice = self.rng.random()
        if dice < self._updates:
            await self._update(io)
        elif dice < self._updates + CLEANS_UP:
            await self._clean_up(io, self._name, timeout=self.rng.choice(TIMEOUTS))
        else:
            await self._do(io, self.rng.choice(self._acts)(), timeout=self.rng.choice(TIMEOUTS))

    async def calm_rounds(self, io: SimIO) -> None:
        """Do each thing once, which succeeds now, and leave no session."""
        for act in dict.fromkeys(self._acts):
            if not await self._do(io, act(), timeout=self.process.core.timeout):
                self.judge.convict("progress", f"{self.process.name} {act().what}, all being well, in vain")
        # Sessions without a TTL outlive whoever made them.
        crashed = [name for name in self.judge.names() if not self.judge.in_use(name)]
        for name in (self._name, *(f"{MARK} {one} *" for one in crashed)):
            await self._clean_up(io, name, timeout=self.process.core.timeout)

    async def _do(self, io: SimIO, act: Act, *, timeout: float) -> bool:
        """Do one thing; returns whether there was an answer."""
        request = act.call.request
        found, error, began, diary = await self._call(
            io, act.what, lambda io: ask(io, act.call, timeout=timeout), timeout=timeout
        )
        of_the_agent = request.path.startswith("/v1/status/")  # which calls without a reply ask as well
        flaw = diary.flaw_of_several(error) if of_the_agent else diary.flaw(request, error, timeout=timeout)
        if isinstance(error, RequestTimeout) and not of_the_agent:
            flaw = flaw or self._rules.flaw_of_reason(error, diary, lasted=self.judge.now - began)
        if flaw:
            self._rules.convict(f"{self.process.name} {act.what}, within {timeout:g} s, and {flaw}")
        if act.refused and error is not None and type(error).__name__ != "InvalidRequest":
            explained = self.judge.promises.undisturbed_since(self.process) > began - 1.0 or self._rules.odd
            if not explained:
                self._rules.convict(f"{self.process.name} {act.what}, where nothing is, and gets {error!r}")
        moments = self._rules.past.during(began - (0.0 if act.fresh else self._rules.behind))
        if error is None and moments is not None and not act.fits(found, moments):
            self._rules.convict(f"{self.process.name} {act.what}: {found} is the answer, and never was so")
        if isinstance(error, TxnFailed) and moments is not None and not act.fits(error, moments):
            self._rules.convict(f"{self.process.name} {act.what}: {error} is the answer, and never was so")
        if error is not None and act.writes is not None and _is_surely_not_applied(error):
            self._rules.forbid(act.writes, f"{self.process.name}'s call has failed: {error}", moments)
        if error is None:
            self.judge.answers.paid(self.process, act.what, sent=len(diary.tries), most=1, since=began)
        return error is None or act.refused or isinstance(error, TxnFailed)

    async def _call(
        self,
        io: SimIO,
        what: str,
        program: Callable[[IO], Coroutine[Any, Any, object]],
        *,
        timeout: float,
        present: bool = False,
    ) -> tuple[Any, ConsulCoordError | None, float, Diary]:
        """Do something, and return its result, its error, when it began, and what it sent.

        ``present``: it goes by what is so now, whatever an old leader knows.
        """
        began, diary = self.judge.now, Diary(io.now)
        pending = self.judge.promises.called(self.process, what, timeout)
        io.task.diary, io.task.wants_present = diary, present
        try:
            return await self.process.call(io.task, program), None, began, diary
        except (TransportError, ResponseError, TxnFailed, DecodeError) as error:
            self.judge.see(f"plain call: {type(error).__name__}")
            return None, error, began, diary
        finally:
            io.task.diary, io.task.wants_present = None, False
            self.judge.promises.ended(pending)

    async def _update(self, io: SimIO) -> None:
        self._number += 1
        mark = f" {self.process.name} {self.actor} {self._number}".encode()
        timeout, made = self.rng.choice((0.0, 2.0, 10.0)), list[bytes]()

        def count(value: bytes | None) -> bytes:
            number = 0 if value is None else int(value.partition(b" ")[0])
            made.append(b"%d" % (number + 1) + mark)
            return made[-1]

        limit = timeout or self.process.core.timeout
        found, error, began, diary = await self._call(
            io,
            f"updates {COUNTED}",
            lambda io: update(io, COUNTED, count, timeout=timeout, attempt=self.process.core.timeout),
            timeout=limit,
        )
        # What it read first may have been an old leader's.
        moments = self._rules.past.during(began - self._rules.behind)
        if moments is not None and diary.refusals > changes_of(COUNTED, moments) + bool(self._rules.behind):
            text = f"{self.process.name} updates {COUNTED}, and is refused {diary.refusals} times"
            self._rules.convict(f"{text}, more often than others wrote it")
        if not timeout and len(made) > 1:
            self._rules.convict(f"{self.process.name} updates {COUNTED} once, and tries again")
        if error is None:
            fits = moments is None or any(_is_written(found, moment) for moment in moments)
            if not fits or found.value != made[-1]:
                self._rules.convict(f"{self.process.name} has updated {COUNTED} to {found}, and has not")
            # Each time that others were faster takes two more.
            self.judge.answers.paid(
                self.process, "updates", sent=len(diary.tries), most=2 * len(made), since=began
            )
            return
        if flaw := diary.flaw_of_several(error):
            self._rules.convict(f"{self.process.name} updates {COUNTED}, and {flaw}")
        if _is_surely_not_applied(error):
            for value in made:
                self._rules.forbid(value, f"{self.process.name}'s update has failed: {error}", moments)

    async def _clean_up(self, io: SimIO, name: str, *, timeout: float) -> None:
        """Destroy all sessions of a name."""
        sessions = self.process.core.sessions
        found, error, began, diary = await self._call(
            io,
            f"destroys the sessions {name}",
            lambda io: handling.destroy_named(io, sessions, name, timeout=timeout),
            timeout=timeout,
            present=True,
        )
        if error is not None:
            if flaw := diary.flaw_of_several(error):
                self._rules.convict(f"{self.process.name} destroys its sessions, and {flaw}")
            return
        moments = self._rules.past.during(began)
        for moment in moments[:1] if moments is not None else ():
            left = [one for one in moment.sessions.values() if fnmatchcase(one.name, name)]
            gone = {one.id for one in found}
            if any(one.id not in gone and one.id in self._rules.past.present.sessions for one in left):
                self._rules.convict(f"{self.process.name} has destroyed {gone}, and there were {left}")
        if moments is not None and any(one.id in moments[-1].sessions for one in found):
            self._rules.convict(f"{self.process.name} has destroyed {found}, and one lives")

    # -- keys

    def _value(self) -> bytes:
        self._number += 1
        return f"{self.process.name} {self.actor} {self._number}".encode() + self.rng.randbytes(2)

    def _options(self) -> ReadOptions | None:
        return self.rng.choice(
            (None, None, ReadOptions(consistency="consistent"), ReadOptions(near="_agent"))
        )

    def _present(self, key: str) -> Entry | None:
        return self.judge.cluster.entry(key)

    def _index_of(self, key: str) -> int:
        """Return a key's index, or one that it had or never had."""
        entry = self._present(key)
        index = 0 if entry is None else entry.modify_index
        return self.rng.choice((index, index, index, max(0, index - 1), 0, index + 1))

    def _get(self) -> Act:
        key, options = self.rng.choice((*KEYS, COUNTED)), self._options()
        return _reading(
            f"reads {key}",
            kv.get(key, options=options),
            lambda found, moment: shown(found.value) == shown(moment.keys.get(key)),
            options,
        )

    def _get_raw(self) -> Act:
        key, options = self.rng.choice(KEYS), self._options()
        return _reading(
            f"reads the bytes of {key}",
            kv.get_raw(key, options=options),
            lambda found, moment: found.value == (moment.keys[key].value if key in moment.keys else None),
            options,
        )

    def _list(self) -> Act:
        prefix, options = self.rng.choice(TREES), self._options()
        return _reading(
            f"lists {prefix}",
            kv.list_pairs(prefix, options=options),
            lambda found, moment: [*map(shown, found.value)] == [*map(shown, moment.under(prefix))],
            options,
        )

    def _keys(self) -> Act:
        prefix, options = self.rng.choice(TREES), self._options()
        separator = self.rng.choice((None, "/"))
        return _reading(
            f"lists the names below {prefix}",
            kv.keys(prefix, separator=separator, options=options),
            lambda found, moment: list(found.value) == _folded(moment.under(prefix), prefix, separator),
            options,
        )

    def _put(self) -> Act:
        key, value, flags = self.rng.choice(KEYS), self._value(), self.rng.choice((0, 1, 2**64 - 1))
        return Act(
            f"writes {key}",
            kv.put(key, value, flags=flags),
            lambda done, moments: done and any(_has(one, key, value, flags) for one in moments),
            value,
        )

    def _cas(self) -> Act:
        key, value = self.rng.choice(KEYS), self._value()
        index = self._index_of(key)

        def fits(done: object, moments: Sequence[Moment]) -> bool:
            if done:
                written = next((at for at, one in enumerate(moments) if _has(one, key, value, 0)), 0)
                return bool(written) and _index(moments[written - 1], key) == index
            return any(_index(one, key) != index for one in moments)

        return Act(f"writes {key} at {index}", kv.put(key, value, cas=index), fits, value)

    def _delete(self) -> Act:
        key = self.rng.choice(KEYS)
        return Act(
            f"deletes {key}",
            kv.delete(key),
            lambda done, moments: done and any(key not in one.keys for one in moments),
        )

    def _delete_cas(self) -> Act:
        key = self.rng.choice(KEYS)
        index = self._index_of(key)

        def fits(done: object, moments: Sequence[Moment]) -> bool:
            if done:
                return any(key not in one.keys for one in moments)
            return any(_index(one, key) != index for one in moments)

        return Act(f"deletes {key} at {index}", kv.delete(key, cas=index), fits)

    def _delete_tree(self) -> Act:
        prefix = self.rng.choice(TREES[1:])
        return Act(
            f"deletes all below {prefix}",
            kv.delete_tree(prefix),
            lambda done, moments: done and any(not one.under(prefix) for one in moments),
        )

    # -- transactions

    def _read_together(self) -> Act:
        first, second = self.rng.sample(KEYS, 2)
        ops = [
            TxnOp.get(first),
            TxnOp.get_tree(self.rng.choice(TREES)),
            TxnOp.get(second),
            TxnOp.get_tree(self.rng.choice(TREES)),
        ]
        chosen = self.rng.sample(ops, self.rng.choice((1, 2, 3, 4)))
        return Act(f"reads {[op.key for op in chosen]} together", kv.txn(*chosen), partial(is_result, chosen))

    def _write_together(self) -> Act:
        first, second, third, fourth = self.rng.sample(KEYS, 4)
        value = self._value()
        entry = self._present(first)
        right = entry is not None and self.rng.chance(0.8)
        check = TxnOp.check_index(first, self._index_of(first))
        if self.rng.chance(0.3) or not right:
            check = TxnOp.check_session(first, "") if right else TxnOp.check_not_exists(first)
        ops = [
            check,
            TxnOp.get_tree("data/c/"),
            self.rng.choice(
                (TxnOp.set(second, value, flags=7), TxnOp.cas(second, value, self._index_of(second)))
            ),
            self.rng.choice(
                (TxnOp.delete(third), TxnOp.delete_cas(third, self._index_of(third)), TxnOp.get(third))
            ),
            TxnOp.get_tree(self.rng.choice(TREES)),
            self.rng.choice((TxnOp.delete_tree("data/none/"), TxnOp.get(fourth))),
        ]
        chosen = [op for op in ops if self.rng.chance(0.8)] or ops
        writes = value if any(op.value == value for op in chosen) else None
        what = f"applies {[f'{op.verb} {op.key}' for op in chosen]}"
        return Act(what, kv.txn(*chosen), partial(is_result, chosen), writes)

    # -- sessions

    def _one_session(self) -> str:
        return self.rng.choice(self._sessions) if self._sessions else NO_SESSION

    def _create(self) -> Act:
        ttl = self.rng.choice((None, self.process.core.sessions.spec.ttl))
        spec = SessionSpec(
            ttl=ttl,
            lock_delay=self.rng.choice((0.0, 0.5)),
            behavior=self.rng.choice(("release", "delete")),
            name=self._name,
            allow_unbounded=True,
        )

        def fits(new: str, moments: Sequence[Moment]) -> bool:
            self._sessions = [*self._sessions[-3:], new]
            wanted = (new, self._name, (ttl or 0.0), round((spec.lock_delay or 0.0) * SECOND), spec.behavior)
            made = (session_kept(one.sessions.get(new)) for one in moments)
            return any(one is not None and (*one[:2], *one[3:6]) == wanted and not one[6] for one in made)

        return Act("makes a session", session.create(spec), fits)

    def _info(self) -> Act:
        name, options = self._one_session(), self._options()
        return _reading(
            f"looks at {name}",
            session.info(name, options=options),
            lambda found, moment: session_shown(found.value) == session_kept(moment.sessions.get(name)),
            options,
        )

    def _sessions_of(self) -> Act:
        options = self._options()
        node = self.judge.cluster.state.node
        call = self.rng.choice((session.list_sessions(options=options), session.node(node, options=options)))

        def fits(found: Any, moment: Moment) -> bool:  # noqa: ANN401 - a Result
            kept = sorted(map(session_kept, moment.sessions.values()), key=str)
            return sorted(map(session_shown, found.value), key=str) == kept

        return _reading("lists sessions", call, fits, options)

    def _renew(self) -> Act:
        name = self._one_session()
        if name not in self._rules.past.present.sessions:
            return self._info()
        return Act(
            f"renews {name}",
            session.renew(name),
            lambda found, moments: any(
                session_shown(found) == session_kept(one.sessions.get(name)) for one in moments
            ),
        )

    def _destroy(self) -> Act:
        name = self._one_session()
        return Act(
            f"destroys {name}",
            session.destroy(name),
            lambda done, moments: done and any(name not in one.sessions for one in moments),
        )

    def _acquire(self) -> Act:
        key, name, value = self.rng.choice(KEYS), self._one_session(), self._value()
        if name not in self._rules.past.present.sessions:
            return self._put()

        def fits(done: object, moments: Sequence[Moment]) -> bool:
            held = [one.keys[key].session if key in one.keys else "" for one in moments]
            if done:
                return any(
                    _has(one, key, value, 3) and holder == name
                    for one, holder in zip(moments, held, strict=True)
                )
            # A lock-delay refuses it, too, which is not seen here.
            return any(holder != name for holder in held)

        return Act(f"acquires {key}", kv.acquire(key, name, value=value, flags=3), fits, value)

    def _release(self) -> Act:
        key, name, value = self.rng.choice(KEYS), self._one_session(), self._value()
        entry = self._present(key)
        if entry is not None and entry.session and self.rng.chance(0.8):
            name = entry.session

        def fits(done: object, moments: Sequence[Moment]) -> bool:
            held = [one.keys[key].session if key in one.keys else "" for one in moments]
            if done:
                return any(
                    _has(one, key, value, 4) and holder != name
                    for one, holder in zip(moments, held, strict=True)
                )
            return any(holder != name for holder in held)

        return Act(f"releases {key}", kv.release(key, name, value=value, flags=4), fits, value)

    # -- others

    def _leader(self) -> Act:
        address = self.judge.cluster.state.server_address
        call = self.rng.choice((status.leader(), status.peers()))
        return Act(
            "asks for the leader",
            call,
            lambda found, _: found in {address, (address,)} or (found is None and self._is_leaderless()),
        )

    def _elsewhere(self) -> Act:
        """Ask in a datacenter by its name, which may be one that there is not."""
        key, name = self.rng.choice(KEYS), self.rng.choice((self.judge.cluster.state.datacenter, NOWHERE))
        options = ReadOptions(datacenter=name)
        call = self.rng.choice((kv.get(key, options=options), kv.get_raw(key, options=options)))

        def fits(found: Any, moments: Sequence[Moment]) -> bool:  # noqa: ANN401 - a Result
            shows = found.value.value if hasattr(found.value, "value") else found.value
            there = (one.keys[key].value if key in one.keys else None for one in moments)
            return name != NOWHERE and shows in there

        return Act(f"reads {key} in {name}", call, fits, fresh=False, refused=name == NOWHERE)

    def _is_leaderless(self) -> bool:
        return not self.judge.calm

    def _nodes(self) -> Act:
        node = self.judge.cluster.state.node
        return Act(
            "lists nodes", catalog.nodes(), lambda found, _: [one.name for one in found.value] == [node]
        )


def _is_surely_not_applied(error: ConsulCoordError) -> bool:
    if isinstance(error, TransportError):
        return not error.outcome_unknown
    return type(error).__name__ in _SURELY_NOT


def _reading(
    what: str, call: Call[Any], fits: Callable[[Any, Moment], bool], options: ReadOptions | None
) -> Act:
    """Return the act of reading something, as it was at one moment."""
    fresh = options is not None and options.consistency == "consistent"
    return Act(what, call, lambda found, moments: any(fits(found, one) for one in moments), fresh=fresh)


def _has(moment: Moment, key: str, value: bytes, flags: int) -> bool:
    entry = moment.keys.get(key)
    return entry is not None and (entry.value, entry.flags) == (value, flags)


def _is_written(found: KVPair, moment: Moment) -> bool:
    return shown(found) == shown(moment.keys.get(found.key))


def _index(moment: Moment, key: str) -> int:
    return moment.keys[key].modify_index if key in moment.keys else 0


def _folded(entries: Sequence[Entry], prefix: str, separator: str | None) -> list[str]:
    """Return names as a listing shows them, cut after the first separator behind the prefix."""
    names: dict[str, None] = {}
    for entry in entries:
        rest = entry.key.removeprefix(prefix)
        cut = separator is not None and separator in rest
        names[prefix + rest.partition("/")[0] + "/" if cut else entry.key] = None
    return list(names)


def changes_of(key: str, moments: Sequence[Moment]) -> int:
    """Return how often a key was written."""
    return len({_index(one, key) for one in moments}) - 1
