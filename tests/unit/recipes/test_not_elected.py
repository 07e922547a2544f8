"""The error of a candidate that waited in vain says what stood in the way, and has it for its cause."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord.errors import AcquireTimeout, PermissionDenied
from consul_coord.http.failures import next_step
from consul_coord.io import Signal
from consul_coord.models import Blocker
from consul_coord.recipes.contend.changes import Changes
from consul_coord.recipes.election import asking
from tests.support.fake_io import FakeIO
from tests.support.replies import OTHER, SESSION, txn_failed, unreachable

if TYPE_CHECKING:
    from consul_coord.errors import ConsulCoordError
    from consul_coord.models import BlockerKind

REFUSED = PermissionDenied("denied to write", method="PUT", path="/v1/txn", status=403)
SILENT = unreachable()
WAITED = 2.5
REST, LAST = "it does not stand at present", "its last attempt was refused: denied to write"
HELD, FIRST = "held by another client", "Consul has not answered its first request"


def attempt(kind: BlockerKind, cause: ConsulCoordError | None = None) -> SimpleNamespace:
    blocker = Blocker(kind, OTHER if kind == "held" else None)
    return SimpleNamespace(blocker=blocker, cause=cause, session=SESSION)


ROWS: dict[str, tuple[SimpleNamespace | None, Exception | None, str, Exception | None]] = {
    "rests": (None, None, REST, None),
    "rests after a refusal": (None, REFUSED, LAST, REFUSED),
    "waits": (attempt("held"), None, HELD, None),
    "waits after a refusal": (attempt("held"), REFUSED, HELD, REFUSED),
    "has just begun": (attempt("unreachable"), None, FIRST, None),
    "has just begun after a refusal": (attempt("unreachable"), REFUSED, LAST, REFUSED),
    "is not answered": (attempt("unreachable", SILENT), None, str(SILENT), SILENT),
    "is not answered after a refusal": (attempt("unreachable", SILENT), REFUSED, str(SILENT), SILENT),
}
"""The attempt under way, the refusal of the one before, a part of the text, and the cause."""


@pytest.mark.parametrize("row", ROWS)
def test_it_says_what_stood_in_the_way(row: str) -> None:
    io = FakeIO()
    io.expect("PUT", "/v1/txn", txn_failed((0, "key doesn't exist")))  # the last look: nobody leads
    under_way, refusal, text, cause = ROWS[row]
    candidacy: Any = SimpleNamespace(
        attempt=under_way,
        refusal=refusal,
        blocker=Blocker("queued") if under_way is None else under_way.blocker,
        plan=SimpleNamespace(key="k"),
        client=SimpleNamespace(closing=Signal()),
        changes=Changes(),
        leading=lambda _: None,
        is_over=False,
    )
    with pytest.raises(AcquireTimeout) as raised:
        io.run(asking.wait_for_leadership(io, candidacy, timeout=WAITED))
    error = raised.value
    assert text in str(error)
    assert (LAST in str(error), REST in str(error)) == (text is LAST, text is REST)
    assert error.__cause__ is cause
    assert (error.key, error.blocker, error.waited) == ("k", candidacy.blocker, WAITED)
    assert error.session == ("" if under_way is None else SESSION)


def test_what_to_do_is_said_once_and_only_where_nothing_answers() -> None:
    told: dict[BlockerKind, str] = {}
    causes: dict[BlockerKind, ConsulCoordError | None] = {"unreachable": SILENT, "held": None}
    for kind, cause in causes.items():
        candidacy: Any = SimpleNamespace(
            attempt=attempt(kind, cause),
            refusal=None,
            blocker=Blocker("queued"),
            plan=SimpleNamespace(key="k"),
        )
        told[kind] = str(asking._timeout(candidacy, waited=WAITED))
    step = next_step(SILENT)
    assert step
    assert (told["unreachable"].count(step), told["held"].count(step)) == (1, 0)
