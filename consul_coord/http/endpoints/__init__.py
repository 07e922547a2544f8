"""Consul's HTTP API as pure functions, one module per family.

Each function returns a ``Call``: a request, and how its reply is read.

Rules
- Nothing here does I/O, tells the time or rolls dice: equal arguments give equal calls.
- A name that Consul would refuse, redirect or silently change is refused here, before anything is sent.
- A reply is read tolerantly (unknown fields are ignored, optional ones may be missing or null) and exactly (a
  wrong type is a DecodeError that names the field). Whatever the status and the body, ``decode`` returns a
  value or raises an error of this package.
- Every request says which ACL rules it needs and what a lost reply means for it.
"""

from __future__ import annotations
