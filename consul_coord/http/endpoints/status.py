"""The servers' Raft state: ``/v1/status``. Needs no permission; knows no index and no waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord.http.endpoints import _call, _json

if TYPE_CHECKING:
    from consul_coord.http.messages import Call
    from consul_coord.models import ReadOptions

_ROOT = "/v1/status/"


def leader(*, options: ReadOptions | None = None) -> Call[str | None]:
    """Read the address of the servers' leader; None when there is none."""
    read = _call.answer(lambda what, value: _json.text(what, value) or None)
    return _call.call(_call.read_request(_ROOT + "leader", options), read)


def peers(*, options: ReadOptions | None = None) -> Call[tuple[str, ...]]:
    """Read the addresses of the servers."""
    return _call.call(_call.read_request(_ROOT + "peers", options), _call.answer(_json.texts))
