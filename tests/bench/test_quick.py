"""The quick form of every measure, as a smoke test: counts are held against the aims, times are not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bench.aims import AIMS, judge
from bench.registry import MEASURES

if TYPE_CHECKING:
    from bench.bed import Bed
    from bench.registry import Measure

COUNTED = {aim.measure for aim in AIMS if aim.kind == "count"}


@pytest.mark.long
@pytest.mark.parametrize("measure", MEASURES, ids=lambda measure: measure.name)
@pytest.mark.timeout(600)  # a busy machine may take 300 s to build the Go client for the first time
def test_the_quick_form_runs_and_its_counts_are_within_the_aims(measure: Measure, bed: Bed) -> None:
    outcome = measure.run(bed)
    assert outcome.measure == measure.name
    assert outcome.figures or outcome.skipped
    verdicts = judge([outcome], kind="count")
    assert bool(verdicts) == (measure.name in COUNTED)
    assert [verdict for verdict in verdicts if not verdict.met] == []


def test_aims_are_of_measures_that_exist_and_each_is_there_once() -> None:
    assert len({(aim.measure, aim.what) for aim in AIMS}) == len(AIMS)
    assert {aim.measure for aim in AIMS} <= {measure.name for measure in MEASURES}
    assert {
        "counts",
        "semaphore_counts",
        "handoff",
        "semaphore_crowd",
        "held",
        "capacity",
        "fleet",
    } == COUNTED
