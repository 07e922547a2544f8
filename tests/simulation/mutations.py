"""Faults planted into the recipes, one at a time, each of which the simulator must find.

Rules
- A mutation is a row: which function, which text of it, and what stands there instead. A row whose text does
  not occur exactly once fails, so that no mutation is lost when the recipes change.
- Only the function is replaced, for as long as the block lasts; everything else is what ships.
"""

from __future__ import annotations
import __future__

import inspect
import sys
import textwrap
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from consul_coord.recipes import coordinator, release, session, unlock, waitqueue
from consul_coord.recipes.contend import Attempt
from consul_coord.recipes.coordinator import Coordinator
from consul_coord.recipes.hold import HoldCore
from consul_coord.recipes.lease import Lease
from consul_coord.recipes.local_queue import LocalQueues
from consul_coord.recipes.reaper import RemoveContender
from consul_coord.recipes.session import SessionSource

if TYPE_CHECKING:
    from collections.abc import Generator


@dataclass(frozen=True, slots=True)
class Mutation:
    """One planted fault."""

    name: str
    home: Any
    """The module or class that the function belongs to."""
    function: str
    was: str
    becomes: str
    rare: bool = False
    """Whether it takes hundreds of seeds to be found."""

    def mutated(self) -> Any:
        """Return the function with the fault in it."""
        function = getattr(self.home, self.function)
        source = textwrap.dedent(inspect.getsource(function))
        assert source.count(self.was) == 1, (
            f"{self.name}: {self.was!r} is not in {self.function} exactly once"
        )
        module = sys.modules[function.__module__]
        code = compile(
            source.replace(self.was, self.becomes),
            f"<{self.name}>",
            "exec",
            flags=__future__.annotations.compiler_flag,
            dont_inherit=True,
        )
        made: dict[str, Any] = {}
        exec(code, vars(module), made)
        return made[self.function]

    @contextmanager
    def planted(self) -> Generator[None]:
        """Have the fault in place."""
        was = getattr(self.home, self.function)
        setattr(self.home, self.function, self.mutated())
        try:
            yield
        finally:
            setattr(self.home, self.function, was)


MUTATIONS = (
    Mutation(
        "deadline counted from the receipt",
        session,
        "renew",
        "confirm(sent_at=sent_at",
        "confirm(sent_at=io.now()",
        rare=True,
    ),
    Mutation("lease of twice the TTL", Lease, "confirm", "(1 - self._drift) * horizon", "2 * horizon"),
    Mutation(
        "no allowance for drift",
        Lease,
        "confirm",
        "(1 - self._drift) * horizon",
        "horizon",
        rare=True,
    ),
    Mutation(
        "renewal takes 404 for success",
        session,
        "renew",
        "core.end_session(kept, LossReason.SESSION_GONE)\n            raise",
        "kept.lease.confirm(sent_at=io.now(), horizon=kept.spec.lease_horizon)\n            return",
        rare=True,
    ),
    Mutation(
        "expiry not told",
        session,
        "keep",
        "core.end_session(kept, LossReason.EXPIRED)",
        "await io.sleep(1.0)",
    ),
    Mutation(
        "giving up cleans nothing",
        Attempt,
        "_give_up",
        "settled = not self.joined and ",
        "settled = True or ",
    ),
    Mutation(
        "no sweep",
        Attempt,
        "run",
        "in self.unanswered:",
        "in ():",
        rare=True,
    ),
    Mutation(
        "barge without check-not-exists",
        Attempt,
        "_barge",
        "() if self.plan.key in self.core.without_queue else (TxnOp.check_not_exists(own),)",
        "()",
        rare=True,
    ),
    Mutation(
        "take without check-index",
        Attempt,
        "_take",
        "TxnOp.check_index(contender.key, contender.modify_index)",
        "TxnOp.get_tree(contender.key + '/none')",
        rare=True,
    ),
    Mutation("a lost grant is not adopted", waitqueue, "judge", "return Adopt()", "pass"),
    Mutation("the order is that of the ids", waitqueue, "read", "(pair.create_index, pair.key)", "pair.key"),
    Mutation("everybody is the head", waitqueue, "judge", "if position > 0:", "if position > 99:"),
    Mutation(
        "the last contender is followed",
        waitqueue,
        "judge",
        "look.live[position - 1]",
        "look.live[(position + 1) % len(look.live)]",
    ),
    Mutation(
        "dead contenders stay",
        RemoveContender,
        "step",
        "await remove(io, key=self.key, index=self.index, deadline=deadline)",
        "pass",
    ),
    Mutation(
        "a grant is believed without a lease",
        Attempt,
        "_granted",
        "or not kept.lease.is_valid(self.io.now())",
        "",
        rare=True,
    ),
    Mutation(
        "unlock without check-index",
        unlock,
        "unlock",
        "TxnOp.check_index(key, index)",
        "TxnOp.get_tree(key + '/none')",
        rare=True,
    ),
    Mutation(
        "an unanswered unlock is taken for done",
        release,
        "release",
        "if ending.outcome is ReleaseOutcome.UNKNOWN:",
        "if hold.key == '':",
    ),
    Mutation("threads do not queue", LocalQueues, "join", "if queue[0] is turn:", "if True:"),
    Mutation(
        "guard by the session alone", HoldCore, "guard", "TxnOp.check_index(self.key, self.last_index),", ""
    ),
    Mutation("a forgotten hold is kept", Coordinator, "_forgotten", "if self.closing.is_set()", "if True"),
    Mutation("closing destroys no session", coordinator, "close", "if kept.ours_to_destroy:", "if False:"),
    Mutation(
        "an ended session is used again",
        SessionSource,
        "live",
        "if kept is not None and kept.lease.is_valid(io.now()):",
        "if kept is not None:\n            return kept\n        if kept is not None:",
    ),
)
"""All of them."""
