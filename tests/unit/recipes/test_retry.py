"""What is sent again, and when: never a CAS whose outcome is unknown, anything else until the deadline."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord.errors import (
    AcquireCancelled,
    BrokenReply,
    ClientClosed,
    ConnectFailed,
    ConsulCoordError,
    InvalidRequest,
    NoLeader,
    PermissionDenied,
    RateLimited,
    RequestTimeout,
    ServerError,
    TransportError,
    TxnFailed,
)
from consul_coord.events import Retried
from consul_coord.http.backoff import FIRST, MOST, delay
from consul_coord.http.endpoints import kv, session
from consul_coord.http.messages import Retry
from consul_coord.http.retry import Failures, may_repeat, perform, send_once, wait_once
from consul_coord.io import PATIENCE
from consul_coord.models import ReadOptions, TxnOp
from tests.support.fake_io import FakeIO
from tests.support.replies import (
    SESSION,
    entry,
    lost,
    ok,
    pairs,
    refusal,
    renewed,
    txn_done,
    txn_failed,
    unreachable,
)

if TYPE_CHECKING:
    from consul_coord.http.messages import Call, Response

TAKE = (TxnOp.check_index("c", 3), TxnOp.lock("k", SESSION), TxnOp.delete("c"))
NEVER: dict[str, tuple[Call[Any], Response]] = {
    "txn": (kv.txn(*TAKE), txn_done(entry("c"), entry("k"))),
    "cas": (kv.put("k", b"", cas=3), ok(value=True)),
    "delete-cas": (kv.delete("k", cas=3), ok(value=True)),
    "create": (session.create(), ok({"ID": SESSION})),
}
ALWAYS: dict[str, tuple[Call[Any], Response]] = {
    "read": (kv.get("k"), pairs()),
    "renew": (session.renew(SESSION), renewed()),
    "destroy": (session.destroy(SESSION), ok(value=True)),
    "read-only txn": (kv.txn(TxnOp.get("k")), txn_done()),
    "txn said to be repeatable": (
        kv.txn(TxnOp.lock("k", SESSION), retry=Retry.IDEMPOTENT),
        txn_done(entry("k")),
    ),
}
UNKNOWN = [lost(), refusal(500, "something odd"), refusal(500, "No cluster leader")]
NOT_APPLIED = [unreachable(), refusal(429)]


@pytest.fixture
def io() -> FakeIO:
    return FakeIO()


def performed(io: FakeIO, call: Call[Any], *, deadline: float = 10.0, attempt: float = 2.0) -> object:
    return io.run(perform(io, call, deadline=io.time + deadline, attempt=attempt))


@pytest.mark.parametrize("name", NEVER)
@pytest.mark.parametrize("answer", UNKNOWN, ids=repr)
def test_a_cas_is_never_repeated_when_its_outcome_is_unknown(
    io: FakeIO, name: str, answer: Response | Exception
) -> None:
    call, _ = NEVER[name]
    io.expect(call.request.method, call.request.path, answer)
    with pytest.raises((BrokenReply, ServerError, NoLeader)):
        performed(io, call)
    assert not io.seen(Retried)


@pytest.mark.parametrize("name", [*NEVER, *ALWAYS])
@pytest.mark.parametrize("answer", NOT_APPLIED, ids=repr)
def test_what_was_never_applied_is_repeated(io: FakeIO, name: str, answer: Response | Exception) -> None:
    call, good = (NEVER | ALWAYS)[name]
    io.expect(call.request.method, call.request.path, answer, answer, good)
    performed(io, call)
    assert len(io.seen(Retried)) == 2


@pytest.mark.parametrize("name", ALWAYS)
@pytest.mark.parametrize("answer", UNKNOWN, ids=repr)
def test_what_can_be_repeated_is(io: FakeIO, name: str, answer: Response | Exception) -> None:
    call, good = ALWAYS[name]
    io.expect(call.request.method, call.request.path, answer, answer, answer, good)
    performed(io, call)
    assert len(io.requests) == 4


@pytest.mark.parametrize("answer", [refusal(403, "Permission denied"), txn_failed((0, "index is stale"))])
def test_a_refusal_is_never_repeated(io: FakeIO, answer: Response) -> None:
    io.expect("PUT", "/v1/txn", answer)
    with pytest.raises((PermissionDenied, TxnFailed)):
        performed(io, kv.txn(TxnOp.get("k")))
    assert len(io.requests) == 1


@pytest.mark.usefixtures("more_than_asked")
def test_the_last_error_is_raised_at_the_deadline_and_not_later(io: FakeIO) -> None:
    io.expect("GET", "/v1/kv/k", *[unreachable()] * 100)
    with pytest.raises(ConnectFailed):
        performed(io, kv.get("k"), deadline=3.0)
    assert 1002.0 < io.time < 1003.0
    assert all(sent < 1003.0 for sent in io.sent_at)


@pytest.mark.parametrize(
    ("seconds", "doubt", "raised"),
    [(0.2, False, NoLeader), (2.0, False, None), (0.2, True, None)],
    ids=["too little time", "time enough", "in doubt"],
)
@pytest.mark.parametrize(
    "kind", [RequestTimeout, ConnectFailed], ids=["one agent", "several, one just checked"]
)
def test_a_last_try_that_had_too_little_time_hides_no_reason(
    io: FakeIO, seconds: float, *, doubt: bool, raised: type[Exception] | None, kind: type[TransportError]
) -> None:
    call = kv.put("k", b"")

    def answers() -> None:
        end = io.time + seconds

        def cut_off(_: object) -> TransportError:
            io.time = end
            return kind("nothing", method="PUT", path="/v1/kv/k", outcome_unknown=doubt)

        io.expect("PUT", "/v1/kv/k", refusal(429))
        io.expect("PUT", "/v1/kv/k", refusal(500, "No cluster leader"))
        io.expect("PUT", "/v1/kv/k", cut_off)

    async def by_hand() -> None:
        failures = Failures(io, io.time + seconds)
        while True:
            try:
                await send_once(io, call, deadline=io.time + seconds)
            except ConsulCoordError as error:
                await failures.pause(error)

    answers()
    with pytest.raises(raised or kind):
        performed(io, call, deadline=seconds)
    answers()
    with pytest.raises(raised or kind):
        io.run(by_hand())


def test_an_attempt_that_hangs_leaves_time_for_others(io: FakeIO) -> None:
    io.expect("GET", "/v1/kv/k", pairs(), pairs(), pairs(), takes=5.0)
    io.expect("GET", "/v1/kv/k", pairs())
    performed(io, kv.get("k"), deadline=10.0, attempt=2.0)
    gaps = [later - earlier for earlier, later in zip(io.sent_at, io.sent_at[1:], strict=False)]
    assert gaps == pytest.approx([2.0 + FIRST * 2**n / 2 for n in range(3)])


def test_there_is_no_attempt_beyond_the_deadline(io: FakeIO) -> None:
    io.expect("GET", "/v1/kv/k", pairs(), takes=5.0)
    with pytest.raises(RequestTimeout):
        performed(io, kv.get("k"), deadline=2.01, attempt=2.0)
    assert len(io.requests) == 1


def test_pauses_grow_are_jittered_and_are_taken_from_the_io(io: FakeIO) -> None:
    io.randomness = 0.5
    io.expect("GET", "/v1/kv/k", *[unreachable()] * 4, pairs())
    performed(io, kv.get("k"))
    gaps = [later - earlier for earlier, later in zip(io.sent_at, io.sent_at[1:], strict=False)]
    assert gaps == pytest.approx([0.75 * FIRST * 2**n for n in range(4)])


def test_a_bug_is_not_taken_for_a_hiccup(io: FakeIO) -> None:
    io.expect("GET", "/v1/kv/k", ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        performed(io, kv.get("k"))
    assert not may_repeat(kv.get("k").request, ZeroDivisionError())


def test_delays() -> None:
    assert [delay(n, 0.0) for n in (1, 2, 3)] == pytest.approx([FIRST / 2, FIRST, FIRST * 2])
    assert delay(1, 1.0) == pytest.approx(FIRST)
    assert delay(10_000, 1.0) == MOST
    assert delay(10_000, 0.0, most=15.0) == 7.5
    assert all(0 < delay(n, r / 10) <= MOST for n in range(1, 60) for r in range(10))


@pytest.mark.parametrize(
    ("leader", "named"),
    [(ok(""), True), (ok("10.0.0.1:8300"), False), (refusal(500), False), (lost(), False)],
)
def test_a_long_try_without_an_answer_names_a_missing_leader(leader: Response, *, named: bool) -> None:
    io = FakeIO()
    began = io.time
    io.expect("PUT", "/v1/kv/k", ok(value=True), takes=17.0)
    io.expect("GET", "/v1/status/leader", leader)
    with pytest.raises(RequestTimeout) as caught:
        io.run(perform(io, kv.put("k", b""), deadline=began + 10.0, attempt=10.0))
    assert ("servers have no leader" in str(caught.value)) is named
    assert ("servers have no leader" in str(io.contact.trouble)) is named
    assert io.time == began + 10.0
    assert io.paths == ["/v1/kv/k", "/v1/status/leader"]


def test_a_short_try_has_no_time_to_ask() -> None:
    io = FakeIO()
    io.expect("PUT", "/v1/kv/k", ok(value=True), takes=17.0)
    with pytest.raises(RequestTimeout):
        io.run(perform(io, kv.put("k", b"", cas=1), deadline=io.time + 4.0, attempt=4.0))
    assert io.paths == ["/v1/kv/k"]


def test_a_leader_that_was_missing_in_an_earlier_try_is_named_by_the_last() -> None:
    io = FakeIO()
    io.expect("PUT", "/v1/kv/k", refusal(500, "No cluster leader"), takes=3.0)
    io.expect("PUT", "/v1/kv/k", ok(value=True), takes=17.0)
    with pytest.raises(RequestTimeout, match="servers have no leader") as caught:
        io.run(perform(io, kv.put("k", b""), deadline=io.time + 7.0, attempt=4.0))
    assert str(caught.value).count("no leader") == 1


NO_PATH = refusal(500, "rpc error making call: No path to datacenter")
MARS = ReadOptions(datacenter="mars")


def test_a_datacenter_that_the_agent_does_not_list_is_refused_at_once_with_those_it_does() -> None:
    io = FakeIO()
    io.contact.datacenter = "mars"
    io.expect("PUT", "/v1/kv/k", NO_PATH)
    io.expect("GET", "/v1/catalog/datacenters", ok(["dc1", "dc2"]))
    began = io.time
    with pytest.raises(InvalidRequest, match="no datacenter 'mars', only 'dc1', 'dc2': correct") as caught:
        performed(io, kv.put("k", b""))
    assert io.time == began
    assert isinstance(caught.value.__cause__, ServerError)
    assert not io.contact.is_present


def test_a_watch_of_such_a_datacenter_is_refused_too() -> None:
    io = FakeIO()
    io.expect("GET", "/v1/kv/k", NO_PATH)
    io.expect("GET", "/v1/catalog/datacenters", ok(["dc1"]))
    watch: Call[Any] = kv.watch("k", index=0, wait=1.0, options=MARS)
    with pytest.raises(InvalidRequest, match="no datacenter 'mars', only 'dc1'"):
        io.run(wait_once(io, watch))


@pytest.mark.parametrize("known", [ok(["dc1", "mars"]), refusal(500), lost()])
def test_a_datacenter_that_is_listed_or_may_be_is_asked_again(known: Response) -> None:
    io = FakeIO()
    io.expect("GET", "/v1/kv/k", NO_PATH)
    io.expect("GET", "/v1/catalog/datacenters", known)
    io.expect("GET", "/v1/kv/k", pairs())
    performed(io, kv.get("k", options=MARS))


def test_the_clients_own_datacenter_that_has_answered_is_out_of_reach_and_no_mistake() -> None:
    io = FakeIO()
    io.contact.datacenter = "mars"
    io.expect("GET", "/v1/kv/k", pairs(), NO_PATH, pairs())
    performed(io, kv.get("k"))
    performed(io, kv.get("k"))


def test_another_datacenter_than_the_clients_own_is_looked_up_whoever_has_answered() -> None:
    io = FakeIO()
    io.expect("GET", "/v1/kv/k", pairs(), NO_PATH)
    io.expect("GET", "/v1/catalog/datacenters", ok(["dc1"]))
    performed(io, kv.get("k"))
    with pytest.raises(InvalidRequest):
        performed(io, kv.get("k", options=MARS))


def test_the_answer_to_a_blocking_query_is_contact(io: FakeIO) -> None:
    io.contact.failed(unreachable())
    io.expect("GET", "/v1/kv/k", pairs(), takes=60.0)
    query: Call[Any] = kv.watch("k", index=3, wait=30.0)
    answer = io.run(wait_once(io, query))
    assert answer is not None
    assert (io.contact.heard_at, io.contact.is_missing) == (io.time, False)
    assert io.counted("wakeups") == 1


SAID: dict[str, tuple[Call[Any], Response | Exception]] = {
    "found": (kv.get("k"), pairs(entry("k"))),
    "not there": (kv.get("k"), pairs()),
    "no permission": (kv.get("k"), refusal(403, "Permission denied")),
    "a bad request": (kv.get("k"), refusal(400, "Bad request")),
    "no such session": (session.renew(SESSION), refusal(404, "Session id 'x' not found")),
    "refused by its checks": (kv.txn(*TAKE), txn_failed((0, "failed index check"))),
    "another holder": (kv.put("k", b"", cas=3), ok(value=False)),
}
NOT_SAID: dict[str, tuple[Call[Any], Response | Exception]] = {
    "no leader": (kv.get("k"), refusal(500, "No cluster leader")),
    "failed": (kv.get("k"), refusal(500, "rpc error")),
    "overloaded": (kv.get("k"), refusal(429)),
    "a proxy without an agent": (kv.get("k"), refusal(503)),
    "something else": (kv.get("k"), ok({"strange": 1})),
    "lost": (kv.get("k"), lost()),
    "unreachable": (kv.get("k"), unreachable()),
}


@pytest.mark.parametrize("is_query", [False, True], ids=["call", "query"])
@pytest.mark.parametrize("name", [*SAID, *NOT_SAID])
def test_an_answer_of_the_servers_is_contact_whatever_it_says_and_nothing_else_is(
    io: FakeIO, name: str, *, is_query: bool
) -> None:
    call, answer = {**SAID, **NOT_SAID}[name]
    io.contact.heard()
    io.contact.failed(unreachable())
    io.time += PATIENCE
    io.expect(call.request.method, call.request.path, answer)
    with suppress(ConsulCoordError):
        io.run(wait_once(io, call) if is_query else send_once(io, call, deadline=io.time + 5.0))
    assert not io.steps
    assert io.contact.is_present == (name in SAID)
    assert io.contact.heard_at == (io.time if name in SAID else io.time - PATIENCE)


@pytest.mark.parametrize("ended", [ClientClosed(), AcquireCancelled("cancelled", key="k")], ids=repr)
def test_a_call_that_is_ended_here_is_no_contact(io: FakeIO, ended: ConsulCoordError) -> None:
    io.contact.failed(unreachable())
    io.expect("GET", "/v1/kv/k", ended)
    with pytest.raises(type(ended)):
        performed(io, kv.get("k"))
    assert not io.contact.is_present


def test_a_blocking_query_that_is_ended_is_no_contact(io: FakeIO) -> None:
    io.contact.failed(unreachable())
    io.expect("GET", "/v1/kv/k", pairs(), takes=60.0)
    query: Call[Any] = kv.watch("k", index=3, wait=30.0)
    answer = io.run(wait_once(io, query, deadline=io.time + 30.0))
    assert answer is None
    assert io.contact.is_missing


@pytest.mark.parametrize(
    ("errors", "doubt"),
    [
        ((unreachable(), unreachable()), False),
        ((lost(), unreachable()), True),
        ((unreachable(), lost()), True),
        ((lost(), unreachable(), unreachable()), True),
    ],
)
def test_a_doubt_that_one_try_has_left_stays(
    io: FakeIO, errors: tuple[ConsulCoordError, ...], *, doubt: bool
) -> None:
    failures = Failures(io, io.time + 60.0)
    for error in errors:
        io.run(failures.pause(error))
    assert failures.doubt == doubt


def test_the_error_that_ends_the_tries_has_the_doubt_of_all(io: FakeIO) -> None:
    failures = Failures(io, io.time + delay(1, 0.0) + 0.001)
    io.run(failures.pause(lost()))
    with pytest.raises(ConnectFailed) as caught:
        io.run(failures.pause(unreachable()))
    assert caught.value.outcome_unknown


def test_the_failure_before_one_that_had_no_time_has_the_doubt_of_all(io: FakeIO) -> None:
    failures = Failures(io, io.time + delay(1, 0.0) + delay(2, 0.0) + 0.1)
    for error in (lost(), unreachable()):
        io.run(failures.pause(error))
    with pytest.raises(ConnectFailed) as caught:
        io.run(failures.pause(RequestTimeout("", method="PUT", path="/", outcome_unknown=False)))
    assert caught.value.outcome_unknown


def refused_for_now() -> RateLimited:
    return RateLimited("", method="PUT", path="/", status=429)


def test_a_last_error_that_can_not_say_so_is_replaced_by_the_one_that_left_the_doubt(io: FakeIO) -> None:
    failures = Failures(io, io.time + delay(1, 0.0) + 0.001)
    io.run(failures.pause(lost()))
    with pytest.raises(TransportError) as caught:
        io.run(failures.pause(refused_for_now()))
    assert caught.value.outcome_unknown
    assert "RateLimited" in "".join(caught.value.__notes__)


def test_a_last_error_without_an_earlier_doubt_is_raised_itself(io: FakeIO) -> None:
    failures = Failures(io, io.time + delay(1, 0.0) + 0.001)
    io.run(failures.pause(unreachable()))
    with pytest.raises(RateLimited):
        io.run(failures.pause(refused_for_now()))


@pytest.mark.parametrize("error", [PermissionDenied("no"), NoLeader("", method="", path="", status=500)])
def test_a_refusal_and_an_error_that_leaves_doubt_itself_are_raised(
    io: FakeIO, error: ConsulCoordError
) -> None:
    failures = Failures(io, io.time + delay(1, 0.0) + 0.001)
    io.run(failures.pause(lost()))
    with pytest.raises(type(error)):
        io.run(failures.pause(error))


@pytest.mark.usefixtures("more_than_asked")
def test_a_call_that_ends_with_a_refusal_to_serve_says_what_an_earlier_try_has_left(io: FakeIO) -> None:
    call = kv.put("k", b"v")
    io.expect("PUT", "/v1/kv/k", lost())
    for _ in range(50):
        io.expect("PUT", "/v1/kv/k", refused_for_now())
    with pytest.raises(TransportError) as caught:
        io.run(perform(io, call, deadline=io.time + 2.0))
    assert caught.value.outcome_unknown
    assert len(io.requests) > 2


@pytest.mark.usefixtures("more_than_asked")
def test_a_reading_that_ends_with_a_refusal_to_serve_has_no_doubt(io: FakeIO) -> None:
    io.expect("GET", "/v1/kv/k", lost())
    for _ in range(50):
        io.expect("GET", "/v1/kv/k", refused_for_now())
    with pytest.raises(RateLimited):
        io.run(perform(io, kv.get("k"), deadline=io.time + 2.0))


def test_failures_and_moves_are_paced_each_by_its_own_number(io: FakeIO) -> None:
    failures = Failures(io, io.time + 60.0)
    began = [io.time]

    def pause() -> Any:
        began.append(io.time)
        return pytest.approx(began[-1] - began[-2])

    io.run(failures.moved())
    assert pause() == 0.0, "the first time costs nothing"
    io.run(failures.pause(unreachable()))
    assert pause() == delay(1, 0.0)
    io.run(failures.pause(unreachable()))
    assert pause() == delay(2, 0.0)
    io.run(failures.moved())
    assert pause() == delay(2, 0.0)
    with pytest.raises(PermissionDenied):
        io.run(failures.pause(PermissionDenied("no", method="GET", path="/", status=403)))
    assert pause() == 0.0, "a refusal is raised at once"


def test_no_other_failure_is_taken_for_a_missing_datacenter() -> None:
    io = FakeIO()
    io.expect("GET", "/v1/kv/k", refusal(500, "rpc error making call: EOF"), pairs())
    performed(io, kv.get("k", options=MARS))
    assert io.paths == ["/v1/kv/k"] * 2
