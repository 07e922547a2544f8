"""Which tests reach which line, and how long they take: a plugin of pytest, ``-p proof.mutants.reach``.

Rules
- The environment's MUTANTS_REACH names the file that is written: JSON, for each line of the core the numbers
  of the tests that ran it, in any thread.
- What a fixture runs counts for the test that asked for it.
- A test may trace lines itself: the measuring goes on after it.
- It notes which tests need an agent of Consul, as whoever shows them a mutant has to start one.
- What is known is written every few minutes, too: a run that is cut short has told what it saw until then.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

ROOT = Path(__file__).resolve().parents[2]
EVERY = 180.0
"""Seconds between two writings."""


def measuring() -> Any:  # noqa: ANN401 - a tool of developers, without which all else can be checked
    """Return what measures the core's lines. Raises ImportError where coverage is not installed."""
    coverage = import_module("coverage")
    return coverage.Coverage(
        data_file=None, config_file=False, source=[str(ROOT / "consul_coord")], messages=False
    )


class Reach:
    """Writes down what each test reaches."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._coverage = measuring()
        self._seconds: dict[str, float] = {}
        self._passed: set[str] = set()
        self._with_agent: set[str] = set()
        self._written_at = time.monotonic()

    def pytest_collection_finish(self) -> None:
        """Begin to measure."""
        self._coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Measure for one test."""
        self._coverage.switch_context(item.nodeid)
        if item.get_closest_marker("agent"):
            self._with_agent.add(item.nodeid)
        tracing = sys.gettrace()
        try:
            return (yield)
        finally:
            if sys.gettrace() is not tracing:
                sys.settrace(tracing)
            if time.monotonic() > self._written_at + EVERY:
                self._write()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take note of a test's time, and whether it is any use."""
        if report.when == "call" and report.passed:
            self._passed.add(report.nodeid)
            self._seconds[report.nodeid] = report.duration

    def pytest_sessionfinish(self) -> None:
        """Write it all down."""
        self._coverage.stop()
        self._write()

    def _write(self) -> None:
        data = self._coverage.get_data()
        tests = sorted(self._passed)
        numbers = {test: number for number, test in enumerate(tests)}
        lines: dict[str, dict[int, list[int]]] = defaultdict(dict)
        for file in data.measured_files():
            name = str(Path(file).relative_to(ROOT))
            for line, contexts in data.contexts_by_lineno(file).items():
                lines[name][line] = sorted(numbers[each] for each in contexts if each in numbers)
        text = json.dumps(
            {
                "tests": tests,
                "seconds": [self._seconds[each] for each in tests],
                "with_agent": [numbers[each] for each in tests if each in self._with_agent],
                "lines": lines,
            }
        )
        beside = self._file.with_suffix(".new")
        beside.write_text(text)
        beside.replace(self._file)
        self._written_at = time.monotonic()


def pytest_configure(config: pytest.Config) -> None:
    """Take part if a file is named."""
    file = os.environ.get("MUTANTS_REACH")
    if file:
        config.pluginmanager.register(Reach(Path(file)))
