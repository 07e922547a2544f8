"""What the models refuse, compute and keep."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import inspect
import math
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consul_coord import models
from consul_coord.errors import InvalidArgument, UnsafeSession
from consul_coord.models import (
    Blocker,
    CheckSpec,
    Holder,
    HoldState,
    KVPair,
    LossReason,
    ReadOptions,
    Registration,
    ReleaseOutcome,
    Result,
    Sequencer,
    Service,
    SessionSpec,
    TxnOp,
    TxnResult,
    failover_bound,
)

DATACLASSES = [
    value
    for name in models.__all__
    if inspect.isclass(value := getattr(models, name)) and dataclasses.is_dataclass(value)
]


@pytest.mark.parametrize("kind", DATACLASSES, ids=lambda kind: kind.__name__)
def test_models_are_frozen_and_slotted(kind: Any) -> None:
    assert kind.__dataclass_params__.frozen
    assert "__slots__" in vars(kind)


HORIZONS: list[tuple[dict[str, Any], float | None]] = [
    ({}, 15.0),
    ({"ttl": 20.0, "lock_delay": 1.0}, 1.0),
    ({"ttl": 60.0}, 15.0),
    ({"ttl": 60.0, "lock_delay": 60.0}, 60.0),
    ({"ttl": 90.0, "lock_delay": 60.0}, 60.0),
    ({"ttl": 20.0, "lock_delay": 1.0, "allow_unbounded": True}, 1.0),
    ({"ttl": 20.0, "lock_delay": 0.0, "allow_unbounded": True}, 20.0),
    ({"ttl": 20.0, "node_checks": ["serfHealth"]}, 15.0),
    ({"ttl": 10.0, "node_checks": ["serfHealth"]}, 10.0),
    ({"ttl": 20.0, "service_checks": ["web"], "lock_delay": 3.0}, 3.0),
    ({"ttl": None, "allow_unbounded": True}, None),
    ({"ttl": None, "node_checks": ["c"], "lock_delay": 5.0, "allow_unbounded": True}, None),
    ({"node_checks": ["c"], "lock_delay": 0.0, "allow_unbounded": True}, 15.0),
]


@pytest.mark.parametrize(("settings", "horizon"), HORIZONS)
def test_lease_horizon(settings: dict[str, Any], horizon: float | None) -> None:
    assert SessionSpec(**settings).lease_horizon == horizon


@pytest.mark.parametrize(
    ("settings", "cause"),
    [
        ({"ttl": None}, "it has no TTL"),
        ({"lock_delay": 0}, "its lock-delay is 0"),
        ({"node_checks": ["c"], "lock_delay": 1e-6}, "its lock-delay of 1e-06 s is over before a request"),
        ({"lock_delay": 0.049}, "its lock-delay of 0.049 s"),
        ({"ttl": 0.01}, "its TTL of 0.01 s is over before"),
        ({"node_checks": ["c"], "lock_delay": 0.0}, "its lock-delay is 0"),
    ],
)
def test_no_horizon_must_be_asked_for(settings: dict[str, Any], cause: str) -> None:
    with pytest.raises(UnsafeSession, match="allow_unbounded=True") as refused:
        SessionSpec(**settings)
    assert cause in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"ttl": 0}, "ttl must be"),
        ({"ttl": -1.0}, "ttl must be"),
        ({"ttl": 86401.0}, "ttl must be a number of seconds, 0.000001 to 86400, not 86401"),
        ({"ttl": math.nan}, "not nan"),
        ({"ttl": math.inf}, "not inf"),
        ({"ttl": "15s"}, "ttl must be"),
        ({"ttl": True}, "ttl must be"),
        ({"lock_delay": -0.1}, "lock_delay must be a number of seconds, 0 to 60, not"),
        ({"lock_delay": 60.5}, "lock_delay must be a number of seconds, 0 to 60, not"),
        ({"lock_delay": 5e-7}, "0.000001 to 60"),
        ({"behavior": "DELETE"}, "'release', 'delete'"),
        ({"drift": 1.0}, "drift"),
        ({"drift": -0.1}, "drift"),
        ({"drift": math.nan}, "drift"),
        ({"node_checks": "serfHealth"}, "did you mean"),
        ({"node_checks": [1]}, "node_checks must be a string"),
        ({"node": ""}, "node must name"),
        ({"register_node": True}, "needs the name of a node"),
        ({"register_node": True, "node": "n", "node_checks": ["c"]}, "and no checks"),
        ({"name": "\ud800"}, "surrogate"),
    ],
)
def test_settings_out_of_range(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        SessionSpec(**settings)


def test_settings_at_their_bounds() -> None:
    SessionSpec(ttl=86400.0, lock_delay=60.0, drift=0.0)
    SessionSpec(ttl=0.2, lock_delay=0.05, drift=0.99)


def test_specs_can_be_keys() -> None:
    assert hash(SessionSpec(node_checks=["a"])) == hash(SessionSpec(node_checks=("a",)))


def test_liveness_adds_serf_health() -> None:
    assert SessionSpec.liveness() == SessionSpec(node_checks=("serfHealth",))
    assert SessionSpec.liveness(ttl=30, node_checks=["c", "serfHealth"]).node_checks == ("serfHealth", "c")


@pytest.mark.parametrize(
    ("changes", "lock_delay", "horizon"),
    [
        ({}, 15.0, 15.0),
        ({"ttl": 30}, 30.0, 30.0),
        ({"ttl": 90.0}, 60.0, 90.0),
        ({"ttl": 60.0, "lock_delay": 5.0}, 5.0, 60.0),
        ({"ttl": 10.0, "lock_delay": 0.0}, 0.0, 10.0),
        ({"ttl": None, "allow_unbounded": True}, None, None),
    ],
)
def test_a_coordination_node_gives_the_whole_ttl(
    changes: dict[str, Any], lock_delay: float | None, horizon: float | None
) -> None:
    spec = SessionSpec.coordination(**changes)
    assert (spec.node, spec.register_node) == ("consul-coord", True)
    assert (spec.lock_delay, spec.lease_horizon) == (lock_delay, horizon)
    assert SessionSpec.coordination("n").node == "n"


def test_failover_bound() -> None:
    assert failover_bound(SessionSpec()) == 2 * 15 + 15 + 1
    assert failover_bound(SessionSpec(ttl=None, allow_unbounded=True)) == math.inf


@pytest.mark.parametrize(("changes", "measured"), [(0, 11.3), (1, 23.6), (2, 37.6)])
def test_each_new_leader_restarts_the_timers(changes: int, measured: float) -> None:
    # Measured on a real cluster: each change came as late as it could.
    bound = failover_bound(SessionSpec(ttl=6, lock_delay=1), leader_changes=changes)
    assert bound == 12 * (1 + changes) + 1 + 1
    assert measured <= bound


@pytest.mark.parametrize("changes", [-1, 1.5, True, "1"])
def test_leader_changes_are_counted(changes: Any) -> None:
    with pytest.raises(InvalidArgument, match="leader_changes"):
        failover_bound(SessionSpec(), leader_changes=changes)


ANY_TEXT = st.text(st.characters(), max_size=20)


@given(ANY_TEXT, st.integers(0, 2**64 - 1), ANY_TEXT)
def test_sequencer_comes_back_from_its_text(key: str, lock_index: int, session: str) -> None:
    sequencer = Sequencer(key, lock_index, session)
    text = str(sequencer)
    assert Sequencer.parse(text) == sequencer
    assert text.isascii()
    assert text.isprintable()
    assert " " not in text


@given(st.text(max_size=30) | st.from_regex(r"[0-9]{1,3}:[%a-f0-9:]*", fullmatch=True))
def test_any_text_is_a_sequencer_or_refused(text: str) -> None:
    try:
        assert str(Sequencer.parse(text)) == text
    except InvalidArgument as error:
        assert "not a sequencer" in str(error)  # noqa: PT017


@pytest.mark.parametrize(
    "text", ["", "1", "1:s", "1:s:k:x", "01:s:k", "-1:s:k", "1:s:%zz", "1:s:%6b", "1:s:%ff", "1:s:k "]
)
def test_no_sequencer(text: str) -> None:
    with pytest.raises(InvalidArgument):
        Sequencer.parse(text)


MATCHES = {
    "same": (KVPair("k", session="s", lock_index=2), True),
    "other session": (KVPair("k", session="t", lock_index=2), False),
    "free": (KVPair("k", lock_index=2), False),
    "later hold": (KVPair("k", session="s", lock_index=3), False),
    "absent": (None, False),
}


class FakeKV:
    """Answers every consistent read with one pair."""

    def __init__(self, pair: KVPair | None) -> None:
        self.pair = pair

    def get(self, key: str, *, options: ReadOptions | None = None) -> Result[KVPair | None]:
        assert (key, options) == ("k", ReadOptions(consistency="consistent"))
        return Result(self.pair)


class FakeAsyncKV(FakeKV):
    async def get(self, key: str, *, options: ReadOptions | None = None) -> Result[KVPair | None]:  # type: ignore[override] # pyright: ignore[reportIncompatibleMethodOverride]
        return FakeKV.get(self, key, options=options)


class FakeClient:
    def __init__(self, pair: KVPair | None) -> None:
        self.kv = FakeKV(pair)


class FakeAsyncClient:
    def __init__(self, pair: KVPair | None) -> None:
        self.kv = FakeAsyncKV(pair)


@pytest.mark.parametrize(("pair", "holds"), MATCHES.values(), ids=MATCHES)
def test_sequencer_verifies(pair: KVPair | None, holds: bool) -> None:
    sequencer = Sequencer("k", 2, "s")
    assert sequencer.matches(pair) is holds
    assert sequencer.verify(FakeClient(pair)) is holds
    assert asyncio.run(sequencer.averify(FakeAsyncClient(pair))) is holds


def test_txn_result() -> None:
    result = TxnResult(((KVPair("a", modify_index=3),), (), (KVPair("b", modify_index=9), KVPair("c"))))
    assert result.index == 9
    assert (len(result), result[1], list(result)[2][1].key) == (3, (), "c")


@pytest.mark.parametrize(
    "make",
    [
        lambda: ReadOptions(index=-1),
        lambda: ReadOptions(wait=0),
        lambda: ReadOptions(wait=601),
        lambda: ReadOptions(max_stale=1),
        lambda: ReadOptions(consistency="stale", max_stale=0),
        lambda: ReadOptions(consistency="stale", max_stale=1e-10),
        lambda: ReadOptions(consistency="fresh"),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
        lambda: CheckSpec(name="", ttl=1),
        lambda: CheckSpec(name="c"),
        lambda: CheckSpec(name="c", ttl=1, tcp="h:1"),
        lambda: CheckSpec(name="c", http="http://h/"),
        lambda: CheckSpec(name="c", ttl=0),
        lambda: CheckSpec(name="c", ttl=1, status="fine"),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
        lambda: Registration(node="", address="a"),
        lambda: Registration(node="n", address=""),
        lambda: Service("s", tags="tag"),
        lambda: TxnOp.get("\ud800"),
        lambda: TxnOp.lock("k", "\ud800"),
    ],
)
def test_refused_arguments(make: Any) -> None:
    with pytest.raises(InvalidArgument):
        make()


def holders(count: int) -> tuple[Holder, ...]:
    return tuple(Holder(f"s{number}", value=f"h{number}".encode()) for number in range(1, count + 1))


ONE, TWO = "h1 (session s1)", "h1 (session s1), h2 (session s2)"
THREE = f"{TWO}, h3 (session s3)"


@pytest.mark.parametrize(
    ("blocker", "clause"),
    [
        (Blocker("held"), "held by another client (unknown)"),
        (Blocker("held", holders=holders(1)), f"held by {ONE}"),
        (Blocker("held", holders=holders(2), position=2), f"held by {TWO}; place 2 in the queue"),
        (Blocker("held", holders=holders(3)), f"held by {THREE}"),
        (Blocker("held", holders=holders(4)), f"held by {THREE} and 1 more"),
        (
            Blocker("queued", holders=holders(9), position=1),
            f"held by {THREE} and 6 more; place 1 in the queue",
        ),
        (Blocker("queued", position=3), "other waiters are first; place 3 in the queue"),
        (Blocker("lock_delay"), "its last holder's session ended, and the lock-delay is still in force"),
        (Blocker("unreachable"), "Consul could not be reached, or could not serve"),
        (
            Blocker("unreachable", holders=holders(1)),
            f"Consul could not be reached, or could not serve; last seen held by {ONE}",
        ),
    ],
)
def test_a_blocker_is_told_in_words_with_three_holders_at_most(blocker: Blocker, clause: str) -> None:
    assert blocker.describe() == clause


@pytest.mark.parametrize(
    ("holder", "shown"),
    [
        (Holder("s"), "an unnamed client (session s)"),
        (Holder("s", value=b"web-1:7", node="n1"), "web-1:7 (node n1, session s)"),
        (Holder("s", value=b"two words"), "'two words' (session s)"),
        (Holder("s", value=b"x" * 60), f"{'x' * 60} (session s)"),
        (Holder("s", value=b"x" * 61), f"{'x' * 60}… (session s)"),
    ],
)
def test_a_holder_is_told_in_words(holder: Holder, shown: str) -> None:
    assert holder.describe() == shown
    assert holder.describe(node=True) == shown.replace("(session", "(node unknown, session")


def test_enumerations_are_their_words() -> None:
    assert [*HoldState] == ["held", "jeopardy", "lost", "released"]
    assert [*ReleaseOutcome] == ["released", "already_lost", "unknown"]
    assert [reason.name.lower() for reason in LossReason] == [*LossReason]


@pytest.mark.parametrize(
    "value",
    [SessionSpec.liveness(), TxnOp.set("k", b"v"), KVPair("k", b"v"), Registration(node="n", address="a")],
)
def test_models_are_copied_and_pickled(value: Any) -> None:
    assert pickle.loads(pickle.dumps(value)) == copy.deepcopy(value) == value
