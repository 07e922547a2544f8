"""Consul's demands on a service, wherever it is registered."""

from __future__ import annotations

import ipaddress
import json
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from consul_coord.server.records import ServiceRecord

_LARGEST_WEIGHT: Final = 65_535
_MOST_META: Final = 64
_LONGEST_META_KEY: Final = 128
_LONGEST_META: Final = 512
_META_KEY: Final = re.compile(r"[a-zA-Z0-9_-]+")
_RESERVED: Final = "consul-"
_PROXY: Final = "connect-proxy"


def problem_with_weights(found: tuple[int, int]) -> str:
    """Return why these can't be a service's weights; empty if they can."""
    if found[0] < 1:
        return "Passing must be greater than 0"
    if found[1] < 0:
        return "Warning must be greater or equal than 0"
    return "DNS Weight must be between 0 and 65535" if max(found) > _LARGEST_WEIGHT else ""


def problem_with_meta(meta: tuple[tuple[str, str], ...]) -> str:
    """Return why these can't be a service's metadata; empty if they can."""
    if len(meta) > _MOST_META:
        return f"Node metadata cannot contain more than {_MOST_META} key/value pairs"
    for key, value in meta:
        if why := _problem_with_pair(key, value):
            return f"Couldn't load metadata pair ('{key}', '{value}'): {why}"
    return ""


def _problem_with_pair(key: str, value: str) -> str:
    if not key:
        return "Key cannot be blank"
    if not _META_KEY.fullmatch(key):
        return "Key contains invalid characters"
    if len(key) > _LONGEST_META_KEY:
        return f"Key is too long (limit: {_LONGEST_META_KEY} characters)"
    if key.startswith(_RESERVED):
        return f"Key prefix '{_RESERVED}' is reserved for internal use"
    return f"Value is too long (limit: {_LONGEST_META} characters)" if len(value) > _LONGEST_META else ""


def problem_with_proxy(service: ServiceRecord) -> str:
    """Return why a service can't be the proxy that it says it is; empty if it can."""
    if service.kind != _PROXY:
        return ""
    problems = [
        *["Proxy.DestinationServiceName must be non-empty for Connect proxy services"][
            : not destination(service)
        ],
        *["Port must be set for a Connect proxy"][: not service.port],
        *["A Proxy cannot also be Connect Native, only typical services"][: service.native],
    ]
    if not problems:
        return ""
    errors = "error" if len(problems) == 1 else "errors"
    return f"{len(problems)} {errors} occurred:\n" + "".join(f"\t* {each}\n" for each in problems) + "\n"


def destination(service: ServiceRecord) -> str:
    """Return the service that a proxy stands before; empty if it is no proxy."""
    shown: str = json.loads(service.proxy).get("DestinationServiceName", "") if service.proxy else ""
    return shown


def is_unspecified(address: str) -> bool:
    """Tell whether an address is the one that stands for any."""
    try:
        return ipaddress.ip_address(address.strip("[]")).is_unspecified
    except ValueError:
        return False
