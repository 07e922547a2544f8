"""A key's value changed by a function: what is sent, again and not again, and what is told."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING

import pytest

from consul_coord.errors import (
    BrokenReply,
    ConnectFailed,
    InvalidArgument,
    PermissionDenied,
    RequestTimeout,
    TxnFailed,
)
from consul_coord.http.update import update
from consul_coord.models import LOCK_FLAGS
from tests.support.fake_io import FakeIO
from tests.support.replies import entry, lost, ok, refusal, txn_done, txn_failed, unreachable

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord.models import KVPair

STALE = txn_failed((0, 'failed to set key "k", index is stale'))


@pytest.fixture
def io() -> FakeIO:
    return FakeIO(random=0.5)


def count_up(value: bytes | None) -> bytes:
    return b"%d" % (int(value or 0) + 1)


def reads(io: FakeIO, value: bytes, index: int) -> None:
    io.expect("GET", "/v1/kv/k", ok([entry("k", session=None, index=index, value=value)]))


def updated(
    io: FakeIO, fn: Callable[[bytes | None], bytes | str | None] = count_up, *, timeout: float = 10.0
) -> KVPair | None:
    return io.run(update(io, "k", fn, timeout=timeout, attempt=10.0))


def written(io: FakeIO) -> list[tuple[str, int]]:
    """Return value and index of each write that was sent."""
    ops = [json.loads(each.body or b"")[0]["KV"] for each in io.requests if each.method == "PUT"]
    return [(each["Value"], each["Index"]) for each in ops]


def test_the_write_names_the_index_that_was_read_and_keeps_the_flags(io: FakeIO) -> None:
    reads(io, b"4", 7)
    io.expect("PUT", "/v1/txn", txn_done(entry("k", session=None, index=9)))
    pair = updated(io)
    assert pair is not None
    assert (pair.value, pair.modify_index) == (b"5", 9)
    (sent,) = [json.loads(each.body or b"")[0]["KV"] for each in io.requests if each.method == "PUT"]
    assert sent == {"Verb": "cas", "Key": "k", "Value": "NQ==", "Flags": LOCK_FLAGS, "Index": 7}


def test_an_absent_key_is_created_and_only_if_it_is_still_absent(io: FakeIO) -> None:
    io.expect("GET", "/v1/kv/k", refusal(404))
    io.expect("PUT", "/v1/txn", txn_done(entry("k", session=None, index=9)))
    pair = updated(io, lambda value: "new" if value is None else None)
    assert pair is not None
    assert pair.value == b"new"
    assert written(io) == [("bmV3", 0)]


@pytest.mark.parametrize("there", [True, False])
def test_nothing_is_written_when_the_function_wants_nothing(io: FakeIO, *, there: bool) -> None:
    io.expect("GET", "/v1/kv/k", ok([entry("k", session=None, value=b"4")]) if there else refusal(404))
    pair = updated(io, lambda _: None)
    assert (None if pair is None else pair.value) == (b"4" if there else None)


def test_a_lost_race_computes_again_from_what_is_there_now(io: FakeIO) -> None:
    reads(io, b"4", 7)
    io.expect("PUT", "/v1/txn", STALE)
    reads(io, b"5", 8)
    io.expect("PUT", "/v1/txn", txn_done(entry("k", session=None, index=9)))
    pair = updated(io)
    assert pair is not None
    assert pair.value == b"6"
    assert [index for _, index in written(io)] == [7, 8]


def always_late(io: FakeIO) -> None:
    """Let somebody else write first each time."""
    for index in range(100):
        reads(io, b"4", 7 + index)
        io.expect("PUT", "/v1/txn", STALE)


def test_after_a_refusal_the_present_leader_is_asked(io: FakeIO) -> None:
    """An old one would give the same value, and have each write refused."""
    reads(io, b"4", 7)
    io.expect("PUT", "/v1/txn", STALE)
    reads(io, b"5", 8)
    io.expect("PUT", "/v1/txn", txn_done(entry("k", session=None, index=9)))
    updated(io)
    asked = [each.params for each in io.requests if each.method == "GET"]
    assert asked == [(), (("consistent", ""),)]


@pytest.mark.parametrize("random", [0.25, 0.75])
@pytest.mark.usefixtures("more_than_asked")
def test_the_pauses_between_lost_races_are_random_over_their_whole_length(io: FakeIO, random: float) -> None:
    io.randomness = random
    always_late(io)
    with pytest.raises(RequestTimeout):
        updated(io, timeout=3)
    writes = [at for at, each in zip(io.sent_at, io.requests, strict=True) if each.method == "PUT"]
    pauses = [later - earlier for earlier, later in itertools.pairwise(writes)]
    assert pauses[:3] == pytest.approx([0.02 * random, 0.04 * random, 0.08 * random])


@pytest.mark.usefixtures("more_than_asked")
def test_the_pauses_between_lost_races_grow_and_the_end_names_the_key(io: FakeIO) -> None:
    io.randomness = 1.0
    always_late(io)
    with pytest.raises(
        RequestTimeout, match="'k' was not updated within 3 s: others wrote it first, 1"
    ) as told:
        updated(io, timeout=3)
    assert not told.value.outcome_unknown
    puts = [at for at, each in zip(io.sent_at, io.requests, strict=True) if each.method == "PUT"]
    pauses = [later - earlier for earlier, later in itertools.pairwise(puts)]
    assert pauses == pytest.approx([0.02, 0.04, 0.08, 0.16, 0.32, 0.5, 0.5, 0.5, 0.5][: len(pauses)])
    assert io.time < 1003


def test_a_single_try_is_one_read_and_one_write(io: FakeIO) -> None:
    reads(io, b"4", 7)
    io.expect("PUT", "/v1/txn", STALE)
    with pytest.raises(RequestTimeout, match="others wrote it first, 1 time in a row"):
        updated(io, timeout=0)


@pytest.mark.parametrize("trouble", [refusal(429), refusal(500, "No cluster leader"), unreachable(), lost()])
def test_trouble_repeats_the_same_write(io: FakeIO, trouble: object) -> None:
    reads(io, b"4", 7)
    io.expect("PUT", "/v1/txn", trouble, trouble, txn_done(entry("k", session=None, index=9)))  # type: ignore[arg-type]
    pair = updated(io)
    assert pair is not None
    assert pair.value == b"5"
    assert written(io) == [("NQ==", 7)] * 3


def test_a_write_without_an_answer_is_not_computed_again_when_the_key_has_moved(io: FakeIO) -> None:
    # It may have been applied, and written over by somebody who read it: counting again would count twice.
    reads(io, b"4", 7)
    io.expect("PUT", "/v1/txn", lost(), STALE)
    with pytest.raises(BrokenReply) as told:
        updated(io)
    assert told.value.outcome_unknown
    assert "'k' may have been applied" in told.value.__notes__[0]


def test_a_refused_write_leaves_no_doubt(io: FakeIO) -> None:
    reads(io, b"4", 7)
    io.expect("PUT", "/v1/txn", refusal(429), STALE)
    reads(io, b"5", 8)
    io.expect("PUT", "/v1/txn", txn_done(entry("k", session=None, index=9)))
    pair = updated(io)
    assert pair is not None
    assert pair.value == b"6"


@pytest.mark.usefixtures("more_than_asked")
def test_the_error_at_the_end_tells_of_the_write_that_may_have_been_applied(io: FakeIO) -> None:
    reads(io, b"4", 7)
    io.expect("PUT", "/v1/txn", lost(), *[unreachable() for _ in range(20)])
    with pytest.raises(BrokenReply):
        updated(io, timeout=2)


@pytest.mark.usefixtures("more_than_asked")
def test_an_agent_that_can_not_be_reached_is_what_is_raised(io: FakeIO) -> None:
    reads(io, b"4", 7)
    io.expect("PUT", "/v1/txn", *[unreachable() for _ in range(20)])
    with pytest.raises(ConnectFailed):
        updated(io, timeout=2)


def test_a_missing_permission_is_named(io: FakeIO) -> None:
    reads(io, b"4", 7)
    io.expect("PUT", "/v1/txn", txn_failed((0, "Permission denied")))
    with pytest.raises(PermissionDenied, match='key:write on "k"'):
        updated(io)


def test_another_refusal_is_raised_as_it_is(io: FakeIO) -> None:
    reads(io, b"4", 7)
    io.expect("PUT", "/v1/txn", txn_failed((0, "something new")))
    with pytest.raises(TxnFailed, match="something new"):
        updated(io)


def test_what_the_function_raises_goes_on_and_nothing_is_written(io: FakeIO) -> None:
    reads(io, b"x", 7)
    with pytest.raises(ValueError, match="invalid literal"):
        updated(io)


@pytest.mark.parametrize("wrong", [3, [], {}])
def test_what_is_no_value_is_refused(io: FakeIO, wrong: object) -> None:
    reads(io, b"4", 7)
    with pytest.raises(InvalidArgument, match="value must be bytes or a string"):
        updated(io, lambda _: wrong)  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize("timeout", [-1.0, float("nan"), float("inf"), "5"])
def test_a_wrong_timeout_is_refused_before_anything_is_sent(io: FakeIO, timeout: float) -> None:
    with pytest.raises(InvalidArgument, match="timeout must be"):
        updated(io, timeout=timeout)
