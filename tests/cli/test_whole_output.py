"""The whole of what each verb prints for a known state, and its exit code: plain, as JSON, and on stderr.

Runs of spaces are cut to one gap between cells, because widths are those of ids that differ from run to run.
"""

from __future__ import annotations

import dataclasses
import json
import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord import (
    LOCK_FLAGS,
    CheckSpec,
    Client,
    Group,
    Lock,
    Member,
    Members,
    ReadWriteLock,
    Semaphore,
    Service,
    SessionSpec,
)
from consul_coord.cli import transfer
from consul_coord.cli.breaking import is_id
from consul_coord.cli.members import _as_json, _as_text
from consul_coord.cli.survey import Held, Place, Waits
from consul_coord.cli.top import _Printer
from consul_coord.server import ReferenceServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Call, Outcome

HEAD = ["KIND", "KEY", "PLACE", "WHO", "SESSION", "NODE", "FENCE"]
NODE = "node1"
SOON = SessionSpec(lock_delay=0.0, allow_unbounded=True, name="candidate")
NOBODY = "00000000-0000-0000-0000-000000000000"


def cells(out: str) -> list[list[str]]:
    """Return the lines of a table as cells."""
    return [re.split(r" {2,}", line) for line in out.splitlines()]


def said(outcome: Outcome) -> list[str]:
    """Return what people are told on stderr, without the program's name."""
    return [line.removeprefix("consul-coord: ") for line in outcome.err.splitlines()]


def events(outcome: Outcome) -> list[dict[str, Any]]:
    """Return what JSON tells on stderr, without the times."""
    found = [json.loads(line) for line in outcome.err.splitlines()]
    assert all(event.pop("time") > 0 for event in found)
    return found


def objects(outcome: Outcome) -> list[dict[str, Any]]:
    return [json.loads(line) for line in outcome.out.splitlines()]


def failure(code: int, message: str) -> dict[str, Any]:
    return {"event": "error", "message": message, "code": code}


def waiter(client: Client, key: str, session: str | None = None) -> str:
    """Have a session wait for a key, and return it."""
    session = session or client.session.create(SOON)
    assert client.kv.acquire(f"{key}/.wait/{session}", session, flags=LOCK_FLAGS, value="heir")
    return session


# -- holders and top


def test_holders_of_each_kind_with_waiters(call: Call, key: str, client: Client) -> None:
    slots = Semaphore(client, f"{key}/d-slots", 3, value="slot")
    pair = ReadWriteLock(client, f"{key}/c-pair", value="writer")
    with Lock(client, f"{key}/a-free"):
        pass
    with (
        Lock(client, f"{key}/b-lock", value="me").hold() as hold,
        pair.write.hold() as writer,
        slots.hold() as first,
        Group(client, f"{key}/e-group", id="web", value="80"),
    ):
        # A later write to its key makes the indexes of a permit's key differ.
        assert client.kv.acquire(
            first.key, first.session, value="later", flags=slots_flags(client, first.key)
        )
        later = client.kv.get(first.key).value
        assert later is not None
        waits = waiter(client, f"{key}/b-lock")
        member = client.kv.list(f"{key}/e-group").value[0]
        shown = call("holders", key, "--all")
        told = call("holders", key, "--all", "--json")
        client.session.destroy(waits)
    assert (shown.code, shown.err, told.code, told.err) == (0, "", 0, "")
    holding = [
        ("lock", f"{key}/b-lock", "me", hold.session, hold.fence),
        ("writing", f"{key}/c-pair", "writer", writer.session, writer.fence),
        ("semaphore 1/3", f"{key}/d-slots", "later", first.session, later.modify_index),
        ("member", member.key, "80", member.session, member.modify_index),
    ]
    rows = [
        [kind, where, "holds", who, session, NODE, str(fence)] for kind, where, who, session, fence in holding
    ]
    rows.insert(1, ["lock", f"{key}/b-lock", "1", "heir", waits, NODE, "-"])
    free = ["lock", f"{key}/a-free", "-", "(free)", "-", "-", "-"]
    assert cells(shown.out) == [HEAD, free, *rows]
    places = objects(told)
    assert [(place["kind"], place["key"], place["limit"], place["problem"]) for place in places] == [
        ("lock", f"{key}/a-free", 1, ""),
        ("lock", f"{key}/b-lock", 1, ""),
        ("writing", f"{key}/c-pair", 1, ""),
        ("semaphore", f"{key}/d-slots", 3, ""),
        ("member", member.key, 1, ""),
    ]
    held = [each for place in places for each in place["holders"]]
    assert [(each["value"], each["session"], each["fence"], each["node"]) for each in held] == [
        (who, session, fence, NODE) for _, _, who, session, fence in holding
    ]
    assert all(each.keys() == {"key", "session", "value", "fence", "node", "session_name"} for each in held)
    assert [waits for place in places for waits in place["waiters"]] == [
        {
            "position": 1,
            "key": f"{key}/b-lock/.wait/{waits}",
            "session": waits,
            "value": "heir",
            "node": NODE,
            "session_name": "candidate",
        }
    ]


def slots_flags(client: Client, key: str) -> int:
    pair = client.kv.get(key).value
    assert pair is not None
    return pair.flags


@pytest.mark.parametrize("verb", ["holders", "members"])
def test_nothing_there_is_said_by_the_prefix(call: Call, key: str, verb: str) -> None:
    message = {"holders": f"nothing is held below {key!r}", "members": f"nobody is in {key!r}"}[verb]
    plain, told = call(verb, key), call(verb, key, "--json")
    assert (plain.code, plain.out, said(plain)) == (1, "", [message])
    assert (told.code, told.out, events(told)) == (1, "", [failure(1, message)])


def test_nothing_held_anywhere_is_said_without_a_prefix(call: Call) -> None:
    with ReferenceServer() as server:
        outcome = call("holders", "", address=server.address)
    assert (outcome.code, outcome.out, said(outcome)) == (1, "", ["nothing is held"])


PLACES = (
    Place(
        "election",
        "lead",
        (Held("lead", "s1", b"one", 7, NODE, "web"),),
        (
            Waits(1, "lead/.wait/s2", "s2", b"\xff", NODE, "db"),
            Waits(2, "lead/.wait/s3", "s3", b"", None, None),
        ),
    ),
    Place("semaphore", "slots", (), problem="the record is broken"),
)


def test_top_prints_a_table_and_an_empty_line_at_each_change(capsys: pytest.CaptureFixture[str]) -> None:
    printer = _Printer(as_json=False)
    for places in (PLACES, ()):
        printer.see(places)
        printer.draw()
    assert cells(capsys.readouterr().out) == [
        HEAD,
        ["election", "lead", "leads", "one", "s1", NODE, "7"],
        ["election", "lead", "1", "\ufffd", "s2", NODE, "-"],
        ["election", "lead", "2", "-", "s3", "-", "-"],
        ["semaphore 0/1", "slots", "-", "the record is broken", "-", "-", "-"],
        [""],
        HEAD,
        [""],
    ]
    assert [printer.press(key) for key in ("q", "Q", "x", "UP")] == [False, False, True, True]


def test_top_prints_an_object_at_each_change(capsys: pytest.CaptureFixture[str]) -> None:
    printer = _Printer(as_json=True)
    printer.see(PLACES)
    printer.see(())
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    held = {"key": "lead", "session": "s1", "value": "one", "fence": 7, "node": NODE, "session_name": "web"}
    waits = {"key": "lead/.wait/s2", "session": "s2", "position": 1, "node": NODE, "session_name": "db"}
    last = {"key": "lead/.wait/s3", "session": "s3", "position": 2, "node": None, "session_name": None}
    assert first.pop("time") <= second.pop("time")
    assert first["places"] == [
        {
            "kind": "election",
            "key": "lead",
            "limit": 1,
            "problem": "",
            "holders": [held],
            "waiters": [waits | {"value_base64": "/w=="}, last | {"value": ""}],
        },
        {
            "kind": "semaphore",
            "key": "slots",
            "limit": 1,
            "problem": "the record is broken",
            "holders": [],
            "waiters": [],
        },
    ]
    assert second == {"places": []}


# -- members


def test_members_whole(call: Call, key: str, client: Client) -> None:
    with Group(client, key, id="web-2", value="80"), Group(client, key, id="web-1", value=b"\xff"):
        first, second = Group(client, key).members()
        shown, told = call("members", key), call("members", key, "--json")
    assert (shown.code, shown.err, told.code, told.err) == (0, "", 0, "")
    assert cells(shown.out) == [
        ["ID", "VALUE", "SESSION", "SINCE"],
        ["web-2", "80", first.session, str(first.since_index)],
        ["web-1", "\ufffd", second.session, str(second.since_index)],
    ]
    assert objects(told) == [
        {"value": "80", "id": "web-2", "session": first.session, "since_index": first.since_index},
        {"value_base64": "/w==", "id": "web-1", "session": second.session, "since_index": second.since_index},
    ]


def test_each_change_of_a_group_has_its_mark() -> None:
    went, came, other = (Member(id, id.encode(), f"s-{id}", 7) for id in ("went", "came", "other"))
    seen = Members(all=(came, other), joined=(came,), left=(went,), changed=(other,))
    assert list(_as_text(seen)) == ["- went went", "+ came came", "* other other"]
    (line,) = _as_json(seen)
    fields = {
        each.id: {"value": each.id, "id": each.id, "session": each.session, "since_index": 7}
        for each in (went, came, other)
    }
    assert json.loads(line) == {
        "all": [fields["came"], fields["other"]],
        "joined": [fields["came"]],
        "left": [fields["went"]],
        "changed": [fields["other"]],
    }


# -- sessions


@pytest.fixture
def named(client: Client, key: str) -> list[str]:
    """Return two sessions: one with a TTL, one with a check."""
    client.agent.register_check(CheckSpec(name=f"{key} check", id="up", ttl=60, status="passing"))
    of_web = CheckSpec(name="web check", id="of-web", ttl=60, status="passing")
    client.agent.register_service(Service("web"), checks=[of_web])
    specs = [
        SessionSpec(name=f"{key} one", ttl=20.0, lock_delay=5.0, behavior="delete"),
        SessionSpec(
            name=f"{key} two",
            ttl=None,
            lock_delay=2.5,
            node_checks=("serfHealth", "up"),
            service_checks=("of-web",),
            allow_unbounded=True,
        ),
    ]
    return [client.session.create(spec) for spec in specs]


def test_sessions_whole(call: Call, key: str, client: Client, named: list[str]) -> None:
    shown = call("sessions", "--name", f"{key} *")
    told = call("sessions", "--name", f"{key} *", "--json")
    assert (shown.code, shown.err, told.code, told.err) == (0, "", 0, "")
    head, *lines = cells(shown.out)
    assert head == ["SESSION", "NAME", "NODE", "TTL", "LOCK-DELAY", "BEHAVIOR", "CHECKS"]
    found = {session: client.session.info(session).value for session in named}
    one, two = found.values()
    assert one is not None
    assert two is not None
    assert sorted(lines) == sorted(
        [
            [named[0], one.name, NODE, "20 s", "5 s", "delete", "-"],
            [named[1], two.name, NODE, "-", "2.5 s", "release", "serfHealth, up, of-web"],
        ]
    )
    expected = {each.id: json.loads(json.dumps(dataclasses.asdict(each))) for each in (one, two)}
    assert {each["id"]: each for each in objects(told)} == expected


def test_destroyed_sessions_are_counted_and_named(call: Call, key: str, named: list[str]) -> None:
    plain = call("sessions", "--name", f"{key} one", "--destroy")
    assert (plain.code, said(plain)) == (0, ["destroyed 1"])
    told = call("sessions", "--name", f"{key} *", "--destroy", "--json")
    assert events(told) == [{"event": "destroyed", "message": "destroyed 1", "sessions": [named[1]]}]
    nobody = call("sessions", "--name", f"{key} *", "--destroy", "--yes")
    assert (nobody.code, nobody.out, said(nobody)) == (1, "", [f"there is no session of the name '{key} *'"])


def test_sessions_asks_with_their_number_and_leaves_them(call: Call, key: str, named: list[str]) -> None:
    outcome = call("sessions", "--name", f"{key} *", "--destroy", typed="n\n")
    assert outcome.code == 1
    assert outcome.err.startswith(f"Destroy {len(named)}? [y/N]: ")
    assert outcome.err.endswith("consul-coord: left as they are\n")


# -- resize


def test_resize_tells_the_limit_and_how_many_are_held(call: Call, key: str, client: Client) -> None:
    with Semaphore(client, key, 2).hold():
        plain, told = call("resize", key, "5"), call("resize", key, "4", "--json")
    assert (plain.code, plain.out, said(plain)) == (0, "", [f"{key} has 5 slots, 1 are held"])
    message = f"{key} has 4 slots, 1 are held"
    assert (told.code, told.out) == (0, "")
    assert events(told) == [{"event": "resized", "message": message, "limit": 4, "held": 1}]
    with Semaphore(client, key, 4).hold():
        pass


def test_there_is_nothing_to_resize(call: Call, key: str) -> None:
    outcome = call("resize", key, "5")
    assert (outcome.code, outcome.out, said(outcome)) == (1, "", [f"there is no semaphore at {key}"])


# -- transfer


@pytest.fixture
def led(client: Client, key: str) -> tuple[str, str]:
    """Return the session that leads, and that of a candidate."""
    leader = client.session.create(SOON)
    assert client.kv.acquire(key, leader, flags=LOCK_FLAGS, value="leader")
    return leader, waiter(client, key)


def test_transfer_from_nobody(call: Call, key: str) -> None:
    outcome = call("transfer", key, NOBODY)
    assert (outcome.code, said(outcome)) == (1, [f"nobody leads {key}"])


def test_transfer_to_nobody_and_to_more_than_one(
    call: Call, key: str, led: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    none = call("transfer", key, NOBODY)
    assert (none.code, said(none)) == (1, [f"no candidate of the session {NOBODY} waits for {key}"])
    contender = SimpleNamespace(session=led[1])
    monkeypatch.setattr(Lock, "contenders", lambda _: (contender, contender))
    several = call("transfer", key, led[1])
    assert (several.code, said(several)) == (
        1,
        [f"more than one candidate of the session {led[1]} waits for {key}"],
    )


def test_transfer_to_a_candidate_that_is_gone_meanwhile(
    call: Call, key: str, led: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lock, "contenders", lambda _: (SimpleNamespace(session=NOBODY),))
    outcome = call("transfer", key, NOBODY)
    assert (outcome.code, said(outcome)) == (1, [f"the candidates of {key} have changed; try again"])


def _to_nobody(client: Client, key: str, leader: str, heir: str) -> str | None:
    del heir
    client.kv.release(key, leader, flags=LOCK_FLAGS)
    return None


def _to_the_heir(client: Client, key: str, leader: str, heir: str) -> str | None:
    client.kv.release(key, leader, flags=LOCK_FLAGS)
    client.kv.acquire(key, heir, flags=LOCK_FLAGS)
    return heir


def _to_another(client: Client, key: str, leader: str, heir: str) -> str | None:
    del heir
    other = client.session.create(SOON)
    client.kv.release(key, leader, flags=LOCK_FLAGS)
    client.kv.acquire(key, other, flags=LOCK_FLAGS)
    return other


def _begins(client: Client, key: str, leader: str, heir: str) -> str | None:
    """Take the request, as a leader whose command takes its time to end."""
    del heir
    assert client.kv.delete(f"{key}/.wait/handover")
    return leader


@pytest.mark.parametrize("hand", [_to_nobody, _to_the_heir, _to_another, _begins, None])
@pytest.mark.parametrize("as_json", [False, True])
def test_transfer_tells_who_leads_in_the_end(  # noqa: PLR0917 - fixtures and a table
    call: Call,
    key: str,
    client: Client,
    led: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
    hand: Callable[[Client, str, str, str], str | None] | None,
    as_json: bool,
) -> None:
    """The verb's clock stands still until its first pause, in which the leader acts; then time is over."""
    leader, heir = led
    clock = [0.0]
    leads: list[str | None] = [leader]

    def pause(_: float) -> None:
        if hand is not None:
            leads[0] = hand(client, key, leader, heir)
        clock[0] = 100.0

    monkeypatch.setattr(transfer, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=pause))
    outcome = call("transfer", key, heir[:8], "--timeout", "7", *["--json"] * as_json)
    end, code = {
        heir: (f"{heir} leads {key}", 0),
        leader: (f"the leader of {key} did not hand over within 7 s", 1),
        None: (f"nobody leads {key} now, not {heir}", 1),
    }.get(leads[0], (f"{leads[0]} leads {key} now, not {heir}", 1))
    if hand is _begins:
        end = f"the command of the leader of {key} did not end within 7 s: it hands over when it has"
    asked = f"waiting for the leader of {key} to hand over"
    assert (outcome.code, outcome.out) == (code, "")
    if as_json:
        done = {"event": "transferred", "message": end, "leader": heir}
        assert events(outcome) == [
            {"event": "asked", "message": asked, "leader": leader},
            failure(code, end) if code else done,
        ]
    else:
        assert said(outcome) == [asked, end]
    left = client.kv.keys(f"{key}/").value
    assert left == (f"{key}/.wait/{heir}",), "the request is gone"


# -- break


@pytest.mark.parametrize("how", ["release", "destroy"])
def test_break_shows_the_holder_and_tells_what_was_done(
    call: Call, key: str, client: Client, how: str
) -> None:
    for as_json in (False, True):
        name = f"{key}/{as_json}"
        session = client.session.create(SOON)
        assert client.kv.acquire(name, session, flags=LOCK_FLAGS, value="me")
        index = client.kv.get(name).index
        outcome = call("break", name, "--session", session, "--how", how, *["--json"] * as_json)
        assert outcome.code == 0
        message = f"taken from session {session}"
        if as_json:
            (shown,) = objects(outcome)
            assert shown.pop("fence") > 0
            assert shown == {
                "key": name,
                "value": "me",
                "session": session,
                "node": NODE,
                "since_index": index,
                "lock_delay_active": False,
            }
            assert events(outcome) == [
                {"event": "broken", "message": message, "session": session, "how": how}
            ]
        else:
            assert outcome.out == f"{name}: me, session {session}, node {NODE}, index {index}\n"
            assert said(outcome) == [message]


def test_break_leaves_what_is_not_meant(
    call: Call, key: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody = call("break", key, "--yes")
    assert (nobody.code, nobody.out, said(nobody)) == (1, "", [f"nobody holds {key}"])
    with Lock(client, key, value=b"").hold() as hold:
        shown = f"{key}: (no value), session {hold.session}, node {NODE}, index "
        other = call("break", key, "--session", NOBODY)
        assert (other.code, said(other)) == (1, [f"{key} is not held by session {NOBODY}"])
        assert other.out.startswith(shown)
        refused = call("break", key, typed="n\n")
        assert refused.code == 1
        assert refused.err.startswith("Release it, although its holder may be at work? [y/N]: ")
        assert refused.err.endswith("consul-coord: left as it is\n")
        destroys = call("break", key, "--how", "destroy", typed="n\n")
        assert destroys.err.startswith("Destroy this session, and with it all its holds?")
        monkeypatch.setattr(Lock, "break_lock", lambda *_, **__: False)
        late = call("break", key, "--yes")
        assert (late.code, said(late)) == (1, [f"{key} has changed hands meanwhile"])
        assert hold.verify()


@pytest.mark.parametrize(
    ("given", "meant"),
    [("0123abcd", True), ("0123abc", False), ("0123abcd-ef", True), ("123abcd-", False), ("x", False)],
)
def test_a_session_is_meant_by_its_beginning(given: str, meant: bool) -> None:
    assert is_id(given, "0123abcd-ef") is meant


# -- once


def test_once_tells_what_has_run_already(call: Call, key: str) -> None:
    first = call("once", key, "--slot", "s1", "--value", "me", "--", "true")
    assert first.code == 0
    again = call("once", key, "--slot", "s1", "--ran-elsewhere-code", "7", "--", "false")
    assert again.code == 7
    (line,) = said(again)
    assert re.fullmatch(
        rf"not run: {key} ran for slot s1 by me at \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d\+00:00", line
    )
    failed = call("once", key, "--slot", "s2", "--leave-failed", "--", "false")
    assert failed.code == 1
    (line,) = said(call("once", key, "--slot", "s2", "--leave-failed", "--", "true"))
    assert line.startswith(f"not run: {key} failed in slot s2 by ")


# -- doctor


def test_doctor_tells_each_finding_whole(call: Call, key: str, address: str) -> None:
    plain, told = call("doctor", key), call("doctor", key, "--json")
    assert (plain.code, plain.err, told.code, told.err) == (0, "", 0, "")
    text = {
        "agent": r"the agent at " + re.escape(address) + r" answered in \d+\.\d ms",
        "leader": r"the leader of the Consul servers is 127\.0\.0\.1:8300",
        "token": r"Consul knows the token, or needs none",
        "version": r"Consul \d+\.\d+\.\d+, server node1, datacenter dc1",
        "session": r"the token may make, renew and read sessions",
        "ttl": r"the servers take 200ms to 24h0m0s \(session_ttl_min sets the minimum\)",
        "checks": r"sessions have no health checks unless asked for \(SessionSpec\.liveness\); "
        r"serfHealth of node1 is passing",
        "key": rf"the token may lock {key} and join its wait queue",
        "clock": r"leases are measured on \w+, which counts suspended time",
        "connections": r"the agent takes 200 connections from one address; each waiter needs one",
        "lease": r"without contact to Consul a hold lasts 14\.25 s by the default settings: the smaller of "
        r"ttl and lock_delay, less 5%\. A longer ttl alone does not change that "
        r"\(ttl=60: 14\.25 s, not 57 s\); SessionSpec\(ttl=60, lock_delay=60\) does",
        "failover": r"when a holder dies, another client gets its lock within 46 s by the default settings: "
        r"twice the TTL of 15 s, the lock-delay, and 1 s",
    }
    assert [cells(line)[0][:2] for line in plain.out.splitlines()] == [["ok", what] for what in text]
    for line, finding, (what, pattern) in zip(
        plain.out.splitlines(), objects(told), text.items(), strict=True
    ):
        assert re.fullmatch(rf"ok {{7}}{what:<11}  {pattern}", line)
        assert re.fullmatch(pattern, finding.pop("text"))
        assert finding == {"what": what, "status": "ok", "rules": []}
