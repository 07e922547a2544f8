"""The benchmarks' own parts: an error here would be an error in every figure."""

from __future__ import annotations

import asyncio
import gzip
import json
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from bench.aims import SYNC, judge
from bench.bed import Bed, Unavailable
from bench.contenders.go_client import GO_GIVEN, GoPairs
from bench.counting import RENEWAL, REQUEST, WATCH, Seen, counting_proxy
from bench.markdown import render
from bench.measures import capacity, counts, handoff
from bench.publish import BEGIN, END, publish
from bench.registry import MEASURES
from bench.results import Figure, Machine, Outcome, Report, Skipped, Spread
from bench.rounds import figures, in_turns, open_all
from bench.virtual import VirtualLoop

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def test_a_spread_interpolates_between_samples() -> None:
    spread = Spread.of([4.0, 1.0, 2.0, 3.0, 10.0], scale=2.0)
    assert (spread.median, spread.mean, spread.count) == (6.0, 8.0, 5)
    assert (spread.p10, spread.p90) == pytest.approx((2.8, 15.2))


def test_a_spread_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no samples"):
        Spread.of([])


def test_contenders_take_turns_and_the_first_round_does_not_count() -> None:
    calls: list[str] = []

    def batch(name: str, _: object) -> list[float]:
        calls.append(name)
        return [float(len(calls))]

    samples = in_turns({"a": 0, "b": 0}, batch, rounds=2)
    assert calls == ["a", "b", "a", "b", "a", "b"]
    assert samples == {"a": [[3.0], [5.0]], "b": [[4.0], [6.0]]}


def test_ratios_are_taken_round_by_round() -> None:
    # The machine is ten times slower in the last round, for both.
    samples = {"floor": [[1.0], [1.0], [10.0]], "other": [[2.0], [2.0], [20.0]]}
    floor, other = figures(samples, what="it", base="floor")
    assert floor.ratio == Spread.of([1.0] * 3)
    assert other.ratio == Spread.of([2.0] * 3)
    assert other.value.median == pytest.approx(2_000.0)


@dataclass(frozen=True)
class Fake:
    name: str
    why: str = ""

    @contextmanager
    def open(self, bed: Bed) -> Iterator[str]:
        if self.why:
            raise Unavailable(self.why)
        yield bed.address


def test_who_is_unavailable_is_named(tmp_path: Path) -> None:
    bed = Bed(address="http://127.0.0.1:8500", quick=True, folder=tmp_path)
    with ExitStack() as stack:
        opened, skipped = open_all(stack, [Fake("here"), Fake("gone", "not installed")], bed)
    assert opened == {"here": bed.address}
    assert skipped == (Skipped("gone", "not installed"),)


@pytest.mark.parametrize("contender", [GO_GIVEN, handoff.GO], ids=lambda each: each.name)
def test_without_go_its_client_is_left_out(
    contender: GoPairs | handoff.Go, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    bed = Bed(address="http://127.0.0.1:8500", quick=True, folder=tmp_path)
    with pytest.raises(Unavailable, match="Go is not installed"), contender.open(bed):
        pytest.fail("opened without Go")


@pytest.mark.parametrize(
    ("target", "kind"),
    [
        ("/v1/txn", REQUEST),
        ("/v1/kv/a?index=0", REQUEST),
        ("/v1/kv/a?index=7&wait=30s", WATCH),
        ("/v1/session/renew/1", RENEWAL),
        ("/v1/kv/v1/session/renew/1", REQUEST),
    ],
)
def test_requests_are_told_apart(target: str, kind: str) -> None:
    assert Seen("GET", target, b"").kind == kind


def report(*outcomes: Outcome) -> Report:
    machine = Machine(
        began="now",
        system="Linux",
        cores=2,
        python="3",
        consul="1",
        go="",
        commit="abc",
        packages={"httpx": "0"},
        load_before=(0.5, 0.5, 0.5),
        load_after=(1.5, 1.5, 1.5),
    )
    return Report(machine=machine, quick=True, seconds=1.0, outcomes=outcomes)


def test_a_report_shows_ratio_value_and_who_is_missing() -> None:
    value, ratio = Spread.of([1.0, 2.0, 3.0]), Spread.of([2.5])
    figure = Figure(contender="ours", what="pair", unit="ms", value=value, ratio=ratio)
    outcome = Outcome(
        measure="m", title="T", figures=(figure,), base="floor", skipped=(Skipped("Go", "no Go"),)
    )
    lines = render(report(outcome)).splitlines()
    assert "| contender | what | × floor | value | mean | samples |" in lines
    assert "| ours | pair | 2.5 | 2 (1.2–2.8) ms | 2 | 3 |" in lines
    assert "- Go: skipped, no Go" in lines
    assert json.loads(report(outcome).to_json())["outcomes"][0]["figures"][0]["ratio"]["median"] == 2.5


def test_each_measure_has_a_name_of_its_own() -> None:
    names = [measure.name for measure in MEASURES]
    assert len(set(names)) == len(names)


@pytest.mark.slow
def test_the_command_writes_what_was_asked_for(agent_address: str, tmp_path: Path) -> None:
    found, tables = tmp_path / "found.json", tmp_path / "found.md"
    options = ["--quick", "--only", "election", "--address", agent_address]
    subprocess.run(
        [sys.executable, "-m", "bench", *options, "--json", found, "--markdown", tables],
        check=True,
        timeout=110,
    )
    (outcome,) = json.loads(found.read_text())["outcomes"]
    assert outcome["measure"] == "election"
    assert all(figure["value"]["median"] > 0 for figure in outcome["figures"])
    assert outcome["title"] in tables.read_text()


def test_an_aim_is_met_or_not_and_without_its_figure_not_judged() -> None:
    what = counts.REQUESTS

    def outcome(requests: float) -> Outcome:
        figure = Figure(contender=SYNC, what=what, unit="", value=Spread.of([requests]))
        return Outcome(measure="counts", title="T", figures=(figure,))

    (met,) = judge([outcome(2.0)])
    (missed,) = judge([outcome(3.0)], kind="count")
    assert (met.met, met.bound, missed.met, missed.found) == (True, "≤ 2", False, 3.0)
    assert judge([outcome(3.0)], kind="time") == ()
    assert "| counts | ours, sync: requests per pair | ≤ 2 | 3 | **no** |" in render(
        replace(report(outcome(3.0)), verdicts=(missed,))
    )


@pytest.mark.slow
def test_publishing_replaces_what_lies_between_the_marks(tmp_path: Path) -> None:
    pages = [tmp_path / "performance.md", tmp_path / "capacity.md"]
    for page in pages:
        page.write_text(f"above\n{BEGIN}\nold\n{END}\nbelow\n", encoding="utf-8")
    found = Outcome(measure="capacity", title="Queues", figures=tuple(capacity.queue_figures(20)))
    for _ in range(2):  # the second time what the first has written is replaced
        publish(report(found), tmp_path)
        texts = [page.read_text(encoding="utf-8") for page in pages]
        assert all(
            text.startswith(f"above\n{BEGIN}\n") and text.endswith(f"{END}\nbelow\n") for text in texts
        )
        assert [text.count("## Queues") for text in texts] == [0, 1]
    assert json.loads((tmp_path / "performance.json").read_text(encoding="utf-8"))["outcomes"]
    assert (tmp_path / "pictures" / "perf-capacity.svg").read_text(encoding="utf-8").count("</svg>") == 1


def test_a_page_without_marks_is_left_as_it_is(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    page.write_text("mine", encoding="utf-8")
    with pytest.raises(ValueError, match="no place for the figures"):
        publish(report(), tmp_path)
    assert page.read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize(
    ("seen", "failed"),
    [
        (Seen("PUT", "/v1/kv/a?cas=7", b"", status=200, said=b"false"), True),
        (Seen("PUT", "/v1/kv/a?cas=7", b"", status=200, said=gzip.compress(b"false")), True),
        (Seen("PUT", "/v1/kv/a?cas=7", b"", status=200, said=b"true"), False),
        (Seen("PUT", "/v1/kv/a?acquire=s", b"", status=200, said=b"false"), False),
        (Seen("PUT", "/v1/txn", b'[{"KV":{"Verb":"cas"}}]', status=409), True),
        (Seen("PUT", "/v1/txn", b'[{"KV":{"Verb":"cas"}}]', status=200), False),
        (Seen("PUT", "/v1/txn", b'[{"KV":{"Verb":"lock"}}]', status=409), False),
    ],
)
def test_writes_that_came_too_late_are_told_apart(seen: Seen, failed: bool) -> None:
    assert seen.failed_cas is failed


def test_the_proxy_notes_each_reply_with_its_request(bed: Bed) -> None:
    with counting_proxy(bed) as (behind, counts):
        behind.agent()
        assert behind.raft_index() > 0
        deadline = time.monotonic() + 10
        while not all(seen.read for seen in counts.seen) and time.monotonic() < deadline:
            time.sleep(0.01)
    assert [(seen.target, seen.status, seen.read > 100) for seen in counts.seen] == [
        ("/v1/agent/self", 200, True)
    ] * 2


def test_virtual_time_passes_only_while_everybody_waits() -> None:
    loop = VirtualLoop()

    async def wait() -> float:
        await asyncio.sleep(3_600.0)
        return loop.time()

    began = time.monotonic()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        assert runner.run(wait()) == pytest.approx(3_600.0)
    assert time.monotonic() - began < 60
