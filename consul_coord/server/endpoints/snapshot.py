"""/v1/snapshot: the replicated state saved to a file, and restored from it.

Rules
- The file is the reference server's own, gzipped; those of Consul are refused, as is what is no such file.
- It takes ``acl = "write"``, because secrets are in it. Each watch ends when a snapshot is restored.
"""

from __future__ import annotations

import gzip
import zlib
from typing import TYPE_CHECKING, Final

from consul_coord.server.call import EMPTY
from consul_coord.server.failures import StateError
from consul_coord.server.wire import Reply

if TYPE_CHECKING:
    from consul_coord.server.call import Call

_LARGEST: Final = 256 * 1024 * 1024
_LEVEL: Final = 1
_HEADER: Final = 10
"""How long the header of a gzipped file is."""

_PACKED: Final = "failed to decompress snapshot: "


def save(call: Call) -> Reply:
    """Return a snapshot."""
    call.authorizer.require("acl", "", "write")
    packed = gzip.compress(call.state.snapshot(), _LEVEL, mtime=0)
    index = str(call.state.store.raft_index)
    meta = (("X-Consul-Index", index), ("X-Consul-Knownleader", "true"), ("X-Consul-Lastcontact", "0"))
    return Reply(200, packed, (("Content-Type", "application/x-gzip"), *meta))


def restore(call: Call) -> Reply:
    """Go back to a snapshot."""
    call.authorizer.require("acl", "", "write")
    if call.options.stale:
        raise StateError("stale not allowed for restore")
    try:
        call.state.restore(_unpacked(call.request.body), call.now)
    except ValueError as error:
        message = f"failed to read snapshot file: {error}"
        raise StateError(message) from None
    return EMPTY


def _unpacked(body: bytes) -> bytes:
    inflate = zlib.decompressobj(zlib.MAX_WBITS | 16)
    try:
        data = inflate.decompress(body, _LARGEST) if len(body) >= _HEADER else b""
    except zlib.error:
        raise StateError(f"{_PACKED}gzip: invalid header") from None
    if not inflate.eof:
        raise StateError(f"{_PACKED}{'unexpected EOF' if body else 'EOF'}")
    return data
