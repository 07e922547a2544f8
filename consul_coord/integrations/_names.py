"""How ids of other libraries are written in keys.

A name that Consul could not store as it is becomes ``~`` and its bytes in hexadecimal digits.
"""

from __future__ import annotations

from contextlib import suppress

ENCODED = "~"


def name_of(given: bytes | str) -> str:
    """Return how an id is written in a key: as it is where Consul takes it, else as ``~`` and digits."""
    data = given.encode() if isinstance(given, str) else given
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return encoded(data)
    plain = text and text.isprintable() and text == text.strip() and text not in {".", ".."}
    return text if plain and not {"/", "%", ENCODED} & set(text) else encoded(data)


def encoded(data: bytes) -> str:
    """Return an id as ``~`` and digits."""
    return ENCODED + data.hex()


def id_of(name: str) -> bytes:
    """Return the id that ``name_of`` has written; another program's name is an id as it is."""
    with suppress(ValueError):
        if name.startswith(ENCODED):
            return bytes.fromhex(name[1:])
    return name.encode()
