"""A plugin: a test fails if a request that it has scripted an answer for was never made.

A program that leaves out one of its last requests, such as a clean-up, may end as if it had made them all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.fake_io import FakeIO

if TYPE_CHECKING:
    from collections.abc import Generator

_made: list[FakeIO] = []


@pytest.fixture(scope="session", autouse=True)
def _noted() -> Generator[None]:
    begin = FakeIO.__init__

    def begin_and_note(self: FakeIO, *args: Any, **options: Any) -> None:
        begin(self, *args, **options)
        _made.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeIO, "__init__", begin_and_note)
        yield


@pytest.fixture
def more_than_asked() -> None:
    """Let a test script more answers than its program asks for."""


@pytest.fixture(autouse=True)
def each_answer_is_asked_for(request: pytest.FixtureRequest) -> Generator[None]:
    """Look at the scripts of one test."""
    _made.clear()
    yield
    left = [f"{step.method} {step.path}" for io in _made for step in io.steps]
    _made.clear()
    assert not left or "more_than_asked" in request.fixturenames
