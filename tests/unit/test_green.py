"""A blocking client is refused where gevent or eventlet has replaced what it needs, and nowhere else."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from consul_coord import AsyncClient, Client, ConfigError
from consul_coord.sync import green
from tests.unit.test_times import NOBODY


@pytest.mark.parametrize("library", green.ASKED_BY)
@pytest.mark.parametrize("replaced", [["thread", "socket"], ["select"], ["time"], []], ids=str)
def test_it_is_refused_by_what_was_replaced(
    monkeypatch: pytest.MonkeyPatch, library: str, replaced: list[str]
) -> None:
    asked = {green.ASKED_BY[library]: lambda module: module in replaced}
    monkeypatch.setitem(sys.modules, library, SimpleNamespace(**asked))
    AsyncClient(NOBODY)  # whose user says what runs it
    if not set(replaced) & set(green.NEEDED):
        Client(NOBODY).close()
        return
    name = library.partition(".")[0]
    with pytest.raises(ConfigError, match=f"^{name} has replaced {', '.join(replaced)} in this process"):
        Client(NOBODY)
