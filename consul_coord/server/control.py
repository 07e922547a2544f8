"""The control endpoint: faults, time and leadership over HTTP, for tests in other processes.

Off unless ``ServerConfig(control=True)``. All calls are POST with a JSON object.

- ``/reference/faults``: ``{"effect": "lose-reply", "method": "PUT", "path": "/v1/txn", "times": 1}`` adds a
  fault.
- ``/reference/faults/clear`` takes all back.
- ``/reference/clock/advance``: ``{"seconds": 20}`` moves a virtual clock.
- ``/reference/leader/lose`` and ``/reference/leader/elect``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from consul_coord.clock import VirtualClock
from consul_coord.server.faults import Fault
from consul_coord.server.wire import JSON, Reply, text_reply

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord.server.faults import Faults
    from consul_coord.server.host import Host
    from consul_coord.server.wire import Request

PREFIX = "/reference/"

_FIELDS: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("effect", "method", "path", "client", "body"), str),
    **dict.fromkeys(("status", "times"), int),
    "delay": (int, float),
}


class Control:
    """Answers control requests."""

    def __init__(self, host: Host, faults: Faults) -> None:
        self._host = host
        self._faults = faults
        self._calls: dict[str, Callable[[dict[str, Any]], object]] = {
            "faults": self._add,
            "faults/clear": lambda _: self._faults.clear(),
            "clock/advance": self._advance,
            "leader/lose": lambda _: host.do(host.service.state.lose_leader),
            "leader/elect": lambda _: host.do(host.service.state.elect_leader),
        }

    def answer(self, request: Request) -> Reply:
        """Carry out a control request: 200, or 400 with the reason."""
        call = self._calls.get(request.path.removeprefix(PREFIX))
        if call is None:
            return text_reply(404, f"no such control: {request.path}")
        if request.method != "POST":
            return text_reply(405, "control requests are POST", (("Allow", "POST"),))
        try:
            call(json.loads(request.body or b"{}"))
        except (AttributeError, TypeError, ValueError) as error:
            return text_reply(400, str(error))
        return Reply(200, b"true", JSON)

    def _add(self, fields: dict[str, Any]) -> None:
        if unknown := fields.keys() - _FIELDS:
            message = f"unknown fields: {', '.join(sorted(unknown))}"
            raise ValueError(message)
        given = {name: value for name, value in fields.items() if value is not None}
        if wrong := [name for name, value in given.items() if not isinstance(value, _FIELDS[name])]:
            message = f"fields of a wrong type: {', '.join(sorted(wrong))}"
            raise ValueError(message)
        self._faults.add(Fault(**given))

    def _advance(self, fields: dict[str, Any]) -> None:
        clock = self._host.clock
        if not isinstance(clock, VirtualClock):
            raise ValueError("the server runs on a real clock")  # noqa: TRY004 - the caller's setup, not a type
        clock.advance(float(fields.get("seconds", 0)))
