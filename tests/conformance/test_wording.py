"""That what later versions may say instead is not just anything."""

from __future__ import annotations

import pytest

from tests.conformance.wording import same


@pytest.mark.parametrize(
    ("text", "known", "expected"),
    [
        ("missing session", "missing session", True),
        ("raft apply failed: missing session", "missing session", True),
        ("apply failed: Missing node registration", "Missing node registration", True),
        ("raft apply failed: missing key", "missing session", False),
        ("other: missing session", "missing session", False),
        ('invalid session "x"', "failed session lookup: index error: UUID must be 36 characters", True),
        ('invalid session "x" or so', "invalid session: index error: UUID must be 36 characters", False),
        ("unknown KV operation: SET", 'unknown KV verb "SET"', True),
        ("unknown KV operation: GET", 'unknown KV verb "SET"', False),
        ("Request decode failed: another Go", "Request decode failed: EOF", True),
        ("Failed to parse body: EOF", "Request decode failed: EOF", False),
    ],
)
def test_the_same_in_other_words(text: str, known: str, *, expected: bool) -> None:
    assert same(text, known) is expected
