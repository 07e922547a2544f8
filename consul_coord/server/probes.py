"""Carrying out an agent's HTTP, TCP and script checks: the only part of the server that calls out.

Each runs in a thread of its own, which ends with its timeout at the latest, and tells what came of it.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import subprocess
import threading
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from consul_coord.server.records import CRITICAL, PASSING, WARNING

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord.server.localagent import Probe

    Report = Callable[[Probe, str, str], object]

_TOO_MANY = 429
_EXITS = {0: PASSING, 1: WARNING}
_AGENT = "Consul Health Check"
_MOST_BODY = 64 * 1024


def start(probe: Probe, report: Report) -> None:
    """Carry out a probe in the background, and report its status and output."""
    threading.Thread(target=_run, args=(probe, report), name=f"check-{probe.check}", daemon=True).start()


def _run(probe: Probe, report: Report) -> None:
    try:
        status, output = _WAYS[probe.kind](probe)
    except (OSError, ValueError, http.client.HTTPException, subprocess.SubprocessError) as error:
        status, output = CRITICAL, str(error)
    report(probe, status, output)


def _script(probe: Probe) -> tuple[str, str]:
    done = subprocess.run(  # noqa: S603 - what whoever may register checks was permitted to run
        probe.command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=probe.timeout,
        check=False,
    )
    return _EXITS.get(done.returncode, CRITICAL), done.stdout.decode(errors="replace")


def _tcp(probe: Probe) -> tuple[str, str]:
    host, _, port = probe.target.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), timeout=probe.timeout):
        return PASSING, f"TCP connect {probe.target}: Success"


def _http(probe: Probe) -> tuple[str, str]:
    url = urlsplit(probe.target)
    target = f"{url.path or '/'}?{url.query}" if url.query else url.path or "/"
    connection = _connection(url.scheme, url.netloc.rpartition("@")[2], probe)
    try:
        headers = {"User-Agent": _AGENT, "Accept": "text/plain, text/*, */*", **dict(probe.headers)}
        connection.request(probe.method or "GET", target, probe.body.encode() or None, headers)
        reply = connection.getresponse()
        body = reply.read(_MOST_BODY).decode(errors="replace")
    finally:
        connection.close()
    output = f"HTTP {probe.method or 'GET'} {probe.target}: {reply.status} {reply.reason} Output: {body}"
    if 200 <= reply.status < 300:  # noqa: PLR2004 - what HTTP calls a success
        return PASSING, output
    return (WARNING if reply.status == _TOO_MANY else CRITICAL), output


def _connection(scheme: str, place: str, probe: Probe) -> http.client.HTTPConnection:
    if scheme == "http":
        return http.client.HTTPConnection(place, timeout=probe.timeout)
    if scheme != "https":
        message = f"unsupported protocol scheme {scheme!r}"
        raise ValueError(message)
    context = ssl.create_default_context()
    if not probe.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return http.client.HTTPSConnection(place, timeout=probe.timeout, context=context)


_WAYS: dict[str, Callable[[Probe], tuple[str, str]]] = {"http": _http, "script": _script, "tcp": _tcp}
