"""Fixtures for the wait queue: a stage for its rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.queue.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.close()
