"""Make inputs for decoders out of good ones, by a seed: the same seed, the same inputs.

Rules
- Most changes are small, and of two kinds: bytes, as a broken network or a liar would change them, and parts
  of JSON, as another version or another program would.
- Nothing grows without bound: inputs stay below ``LONGEST`` bytes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

LONGEST: Final = 4_000
_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*|true|false|null|[{}\[\],:]')
_PARTS: Final = (
    *(b"null", b"true", b"0", b"-1", b"1.5", b"1e999", b"18446744073709551616", b"9" * 400, b"NaN", b'""'),
    *(b"[]", b"{}", b"[null]", b'{"":null}', b'"\\ud800"', b'"\\u0000"', b'"AP8="', b'"===="', b'"15s"'),
    *(b'"-1h"', b'"1e9h"', b'"99999999999999h"', b"[" * 60, b'{"a":' * 60, b'"\xff\xfe"', b"-0", b'"\xc3"'),
    *(b",", b":", b"}", b"]", b'"', b'"Key"', b'"Session"', b'"ID"', b'"Holders"', b'"Limit"', b'"Results"'),
)
_BYTES: Final = (
    b"\0",
    b"\r\n",
    b"\n",
    b"\x1b[31m",
    b"\xff",
    b"%2F",
    b"..",
    b"?",
    b"/",
    b":",
    b"\r\n\r\n",
    b" ",
)


def mutated(seeds: Sequence[bytes], random: Random) -> bytes:
    """Return a good input with up to four changes."""
    data = random.choice(seeds)
    for _ in range(random.choice((0, 1, 1, 1, 2, 2, 3, 4))):
        data = random.choice(_CHANGES)(data, random, seeds)
    return data[:LONGEST]


def _other_part(data: bytes, random: Random, _seeds: Sequence[bytes]) -> bytes:
    """Put something else where a token of JSON was."""
    tokens = list(_TOKEN.finditer(data))
    if not tokens:
        return data + random.choice(_PARTS)
    token = random.choice(tokens)
    return data[: token.start()] + random.choice(_PARTS) + data[token.end() :]


def _other_byte(data: bytes, random: Random, _seeds: Sequence[bytes]) -> bytes:
    place = random.randrange(len(data) + 1)
    return data[:place] + bytes((random.randrange(256),)) + data[place + 1 :]


def _inserted(data: bytes, random: Random, _seeds: Sequence[bytes]) -> bytes:
    place = random.randrange(len(data) + 1)
    return data[:place] + random.choice(_BYTES) + data[place:]


def _cut_out(data: bytes, random: Random, _seeds: Sequence[bytes]) -> bytes:
    first, last = sorted(random.randrange(len(data) + 1) for _ in range(2))
    return data[:first] + data[last:]


def _doubled(data: bytes, random: Random, _seeds: Sequence[bytes]) -> bytes:
    first, last = sorted(random.randrange(len(data) + 1) for _ in range(2))
    return data[:last] + data[first:]


def _cut_off(data: bytes, random: Random, _seeds: Sequence[bytes]) -> bytes:
    return data[: random.randrange(len(data) + 1)]


def _crossed(data: bytes, random: Random, seeds: Sequence[bytes]) -> bytes:
    other = random.choice(seeds)
    return data[: random.randrange(len(data) + 1)] + other[random.randrange(len(other) + 1) :]


_CHANGES: Final[tuple[Callable[[bytes, Random, Sequence[bytes]], bytes], ...]] = (
    *(_other_part, _other_part, _other_part, _other_byte, _inserted, _cut_out, _doubled, _cut_off, _crossed),
)
