"""Whatever a server, a proxy or another client writes, the answer is a value or a typed error.

The long form reads 1,000,000 replies, or as many as CONSUL_COORD_FUZZ_REPLIES says.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.decoders import TARGETS, TYPED, Target
from tests.fuzz.mutations import mutated

if TYPE_CHECKING:
    from collections.abc import Mapping

pytestmark = pytest.mark.arbitrary_secrets

REPLIES: Final = int(os.environ.get("CONSUL_COORD_FUZZ_REPLIES", "1000000"))
_FEW: Final = 150_000
_NO_REFUSALS: Final = {"a queue"}
"""Who takes everything: what is strange in a queue is left alone."""
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@dataclass(slots=True)
class Tally:
    """What became of the inputs of each target."""

    read: Counter[str] = field(default_factory=Counter[str])
    refused: Counter[str] = field(default_factory=Counter[str])
    findings: list[str] = field(default_factory=list[str])

    def take(self, name: str, target: Target, data: bytes) -> None:
        """Let a target read one input."""
        try:
            target.read(data)
        except TYPED as error:
            self.refused[name] += 1
            if not str(error).isprintable():
                self.findings.append(f"{name}: {data!r}: a message with control characters")
        except Exception as error:  # noqa: BLE001 - that is what is looked for
            self.findings.append(f"{name}: {data!r}: {error!r}")
        else:
            self.read[name] += 1


def fuzz(targets: Mapping[str, Target], count: int, seed: int) -> Tally:
    """Let the targets read ``count`` inputs in turn."""
    random, tally = Random(seed), Tally()
    names = list(targets)
    for number in range(count):
        name = names[number % len(names)]
        tally.take(name, targets[name], mutated(targets[name].seeds, random))
        if len(tally.findings) > 20:
            break
    return tally


def check(tally: Tally) -> None:
    assert tally.findings == []
    assert set(tally.read) == set(TARGETS)
    assert set(tally.refused) == set(TARGETS) - _NO_REFUSALS


@pytest.mark.search
def test_changed_replies(search_seed: int) -> None:
    check(fuzz(TARGETS, _FEW, seed=search_seed))


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_million_changed_replies() -> None:
    began = time.monotonic()
    tally = fuzz(TARGETS, REPLIES, seed=2)
    read, refused = tally.read.total(), tally.refused.total()
    took = time.monotonic() - began
    told = f"{read + refused} replies, {len(TARGETS)} readers, {took:.0f} s: {read} read, {refused} refused"
    sys.stdout.write(told + "\n")
    check(tally)


@pytest.mark.parametrize("name", TARGETS)
def test_the_seeds_are_read(name: str) -> None:
    TARGETS[name].read(TARGETS[name].seeds[0])


@pytest.mark.search
@settings(max_examples=2_000)
@given(name=st.sampled_from(sorted(TARGETS)), head=st.binary(max_size=2), body=_json.map(json.dumps))
def test_any_json(name: str, head: bytes, body: str) -> None:
    tally = Tally()
    tally.take(name, TARGETS[name], head + body.encode())
    assert tally.findings == []


@pytest.mark.search
@settings(max_examples=2_000)
@given(name=st.sampled_from(sorted(TARGETS)), data=st.binary(max_size=200))
def test_any_bytes(name: str, data: bytes) -> None:
    tally = Tally()
    tally.take(name, TARGETS[name], data)
    assert tally.findings == []


def test_a_reader_with_a_fault_is_found() -> None:
    def read(data: bytes) -> object:
        return json.loads(data[2:])[0]["Key"]

    seeds = TARGETS["kv.get"].seeds[:1]
    findings = fuzz({"faulty": Target(read, seeds)}, 500, seed=1).findings
    assert any("KeyError" in finding for finding in findings)
