"""Which path and method leads to which endpoint, and what happens to those that lead nowhere.

Rules
- A path that is not clean (``//``, ``.``, ``..``, no leading slash in a key) is redirected to the clean one
  before anything else. A path that is badly percent-encoded or has unprintable characters is a 400.
- A pattern ending in a slash matches everything under it; without the slash it is redirected. Others match
  exactly.
- For a real endpoint of Consul that this server lacks, the answer is a 501 that names it. A path that Consul
  does not have is a 404. A wrong method is a 405 that says which are right.
"""

from __future__ import annotations

import posixpath
import re
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote_to_bytes

from consul_coord.server.dialects import CONSUL_1_8
from consul_coord.server.endpoints import (
    acl,
    agent,
    catalog,
    coordinate,
    event,
    health,
    kv,
    query,
    registering,
    session,
    snapshot,
    status,
    txn,
)
from consul_coord.server.failures import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from consul_coord.server.call import Call, Read
    from consul_coord.server.dialects import Dialect
    from consul_coord.server.wire import Reply, Request

    Handler = Callable[[Call], "Reply | Read"]

_PRINTABLE_ASCII = re.compile(r"[ -~]*")
_NO_ESCAPE = re.compile("%(?![0-9A-Fa-f]{2})")
_LEFT_ALONE = "/$&+,:;=@-_.~"
_HTML = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&#34;", "'": "&#39;"})


@dataclass(frozen=True, slots=True)
class Route:
    """An endpoint: its handlers by method, whether it needs a leader and whether it takes a namespace.

    ``cached`` says that it tells how an answer to ``?cached`` was come by, ``placed`` that it is answered in
    the datacenter that the request names; the agent answers all others itself. ``of_acls`` says that it is
    refused without ACLs, ``options`` with which methods the options of a read are looked at.
    """

    path: str
    handlers: Mapping[str, Handler]
    needs_leader: bool = True
    namespaced: bool = True
    authorized: bool = True
    cached: bool = False
    placed: bool = True
    of_acls: bool = False
    options: tuple[str, ...] = ("GET",)

    @property
    def allow(self) -> str:
        """Return the value of the Allow header."""
        return ",".join(("OPTIONS", *self.handlers))


def _local(
    path: str,
    method: str,
    handler: Handler,
    *,
    authorized: bool = True,
    cached: bool = False,
    placed: bool = False,
) -> Route:
    return Route(
        path,
        {method: handler},
        needs_leader=False,
        namespaced=False,
        authorized=authorized,
        cached=cached,
        placed=placed,
    )


def _agents(
    path: str, method: str, handler: Handler, *, namespaced: bool = True, options: tuple[str, ...] = ()
) -> Route:
    return Route(
        path, {method: handler}, needs_leader=False, namespaced=namespaced, placed=False, options=options
    )


def _acls(path: str, handlers: Mapping[str, Handler]) -> Route:
    return Route(path, handlers, of_acls=True)


ROUTES = (
    Route(
        "/v1/kv/", {"GET": kv.read, "PUT": kv.write, "DELETE": kv.delete}, options=("GET", "PUT", "DELETE")
    ),
    Route("/v1/session/create", {"PUT": session.create}),
    Route("/v1/session/destroy/", {"PUT": session.destroy}),
    Route("/v1/session/renew/", {"PUT": session.renew}, options=("PUT",)),
    Route("/v1/session/info/", {"GET": session.info}),
    Route("/v1/session/node/", {"GET": session.of_node}),
    Route("/v1/session/list", {"GET": session.list_all}),
    Route("/v1/txn", {"PUT": txn.apply}, namespaced=False, options=("PUT",)),
    Route("/v1/catalog/register", {"PUT": catalog.register}, placed=False),
    Route("/v1/catalog/deregister", {"PUT": catalog.deregister}, placed=False),
    _local("/v1/catalog/datacenters", "GET", catalog.datacenters, authorized=False, cached=True),
    Route("/v1/catalog/nodes", {"GET": catalog.nodes}, namespaced=False),
    Route("/v1/catalog/node/", {"GET": catalog.node}),
    Route("/v1/catalog/services", {"GET": catalog.services}, cached=True),
    Route("/v1/catalog/service/", {"GET": catalog.service}, cached=True),
    Route("/v1/catalog/connect/", {"GET": catalog.connect}),
    Route("/v1/catalog/node-services/", {"GET": catalog.node_services}),
    Route("/v1/health/service/", {"GET": health.service}, cached=True),
    Route("/v1/health/connect/", {"GET": health.connect}),
    Route("/v1/health/ingress/", {"GET": health.ingress}),
    Route("/v1/health/node/", {"GET": health.of_node}),
    Route("/v1/health/state/", {"GET": health.in_state}),
    Route("/v1/health/checks/", {"GET": health.of_service}),
    Route("/v1/query", {"GET": query.list_all, "POST": query.create}, namespaced=False),
    Route("/v1/query/", {"GET": query.read, "PUT": query.update, "DELETE": query.delete}, namespaced=False),
    _local("/v1/status/leader", "GET", status.leader, authorized=False, placed=True),
    _local("/v1/status/peers", "GET", status.peers, authorized=False, placed=True),
    Route("/v1/operator/raft/configuration", {"GET": status.raft_configuration}, namespaced=False),
    _local("/v1/event/fire/", "PUT", event.fire, placed=True),
    _local("/v1/event/list", "GET", event.list_all),
    Route("/v1/coordinate/nodes", {"GET": coordinate.nodes}, namespaced=False),
    Route("/v1/coordinate/node/", {"GET": coordinate.node}, namespaced=False),
    _local("/v1/coordinate/datacenters", "GET", coordinate.datacenters, authorized=False),
    Route("/v1/coordinate/update", {"PUT": coordinate.update}, namespaced=False),
    _agents("/v1/agent/self", "GET", agent.describe_self, namespaced=False),
    _agents("/v1/agent/checks", "GET", agent.checks),
    _agents("/v1/agent/services", "GET", agent.services),
    _agents("/v1/agent/members", "GET", agent.members, namespaced=False),
    _agents("/v1/agent/service/", "GET", agent.service, options=("GET",)),
    _agents("/v1/agent/health/service/id/", "GET", agent.health_by_id),
    _agents("/v1/agent/health/service/name/", "GET", agent.health_by_name),
    _agents("/v1/agent/maintenance", "PUT", agent.maintain_node, namespaced=False),
    _agents("/v1/agent/service/maintenance/", "PUT", agent.maintain_service),
    _agents("/v1/agent/reload", "PUT", agent.reload, namespaced=False),
    _agents("/v1/agent/check/register", "PUT", registering.register_check),
    _agents("/v1/agent/check/deregister/", "PUT", agent.deregister_check),
    _agents("/v1/agent/check/pass/", "PUT", agent.pass_check),
    _agents("/v1/agent/check/warn/", "PUT", agent.warn_check),
    _agents("/v1/agent/check/fail/", "PUT", agent.fail_check),
    _agents("/v1/agent/check/update/", "PUT", agent.update_check, namespaced=False),
    _agents("/v1/agent/service/register", "PUT", registering.register_service),
    _agents("/v1/agent/service/deregister/", "PUT", agent.deregister_service),
    _agents("/v1/agent/leave", "PUT", agent.leave, namespaced=False),
    _acls("/v1/acl/bootstrap", {"PUT": acl.bootstrap}),
    _acls("/v1/acl/policies", {"GET": acl.policies}),
    _acls("/v1/acl/policy", {"PUT": acl.create_policy}),
    _acls("/v1/acl/policy/", {"GET": acl.policy, "PUT": acl.update_policy, "DELETE": acl.delete_policy}),
    _acls("/v1/acl/policy/name/", {"GET": acl.policy_by_name}),
    _acls("/v1/acl/tokens", {"GET": acl.tokens}),
    _acls("/v1/acl/token", {"PUT": acl.create_token}),
    _acls("/v1/acl/token/self", {"GET": acl.own_token}),
    _acls("/v1/acl/token/", {"GET": acl.token, "PUT": acl.update_token, "DELETE": acl.delete_token}),
    Route(
        "/v1/snapshot",
        {"GET": snapshot.save, "PUT": snapshot.restore},
        namespaced=False,
        options=("GET", "PUT"),
    ),
)

# Endpoints that Consul has and this server does not: exact, or everything under it with a final slash.
ABSENT = (
    *(
        f"/v1/acl/{name}{under}"
        for name in ("auth-method", "binding-rule", "clone", "destroy", "info", "role", "rules/translate")
        for under in ("", "/")
    ),
    *(
        f"/v1/acl/{name}"
        for name in (
            "auth-methods",
            "binding-rules",
            "create",
            "list",
            "login",
            "logout",
            "replication",
            "roles",
            "update",
        )
    ),
    "/v1/agent/",
    "/v1/catalog/",
    "/v1/config",
    "/v1/config/",
    "/v1/connect/",
    "/v1/coordinate/",
    "/v1/discovery-chain/",
    "/v1/event/",
    "/v1/health/",
    "/v1/internal/",
    "/v1/operator/",
    "/debug/",
    "/ui/",
)

_EXACT = {route.path: route for route in ROUTES if not route.path.endswith("/")}
_PREFIXES = tuple(
    sorted((route for route in ROUTES if route.path.endswith("/")), key=lambda route: -len(route.path))
)


def find(request: Request, dialect: Dialect = CONSUL_1_8) -> tuple[Route, str]:
    """Return the route of a request and the decoded path after it; raise ``Refusal`` when there is none."""
    path = _decode(request.path)
    if path == "*":
        raise Refusal(200 if request.method == "OPTIONS" else 404, "")
    if path == "/":
        raise _redirect(request, "/ui/", dialect.redirect)
    if (clean := _clean(path)) != path:
        if not dialect.cleans_quoted or _clean(request.path) != request.path:
            raise _redirect(request, clean, dialect.redirect)
        path = clean
    route = _match(path)
    if route is not None:
        return route, path[len(route.path) :]
    if any(path == known.path[:-1] for known in _PREFIXES):
        raise _redirect(request, path + "/", dialect.redirect)
    if any(path == absent or (absent.endswith("/") and path.startswith(absent)) for absent in ABSENT):
        raise Refusal(501, f"The reference server does not have {path}: use a Consul agent for it")
    raise Refusal(404, f"Invalid URL path: {path}" if dialect.names_unknown_paths else "")


def handler_of(route: Route, method: str) -> Handler:
    """Return the handler of a method; raise ``Refusal`` for OPTIONS (200) and for a wrong method (405)."""
    if method == "OPTIONS":
        raise Refusal(200, "", (("Allow", route.allow),))
    if (handler := route.handlers.get(method)) is None:
        raise Refusal(405, f"method {method} not allowed", (("Allow", route.allow),))
    return handler


def _match(path: str) -> Route | None:
    if (exact := _EXACT.get(path)) is not None:
        return exact
    return next((route for route in _PREFIXES if path.startswith(route.path)), None)


def _decode(raw: str) -> str:
    if _NO_ESCAPE.search(raw):
        raise Refusal(400, "400 Bad Request", (("Connection", "close"),))
    path = (
        unquote_to_bytes(raw).decode("utf-8", "surrogateescape") if "%" in raw or not raw.isascii() else raw
    )
    if not _PRINTABLE_ASCII.fullmatch(path) and not all(map(_printable, path)):
        raise Refusal(400, "")
    return path


def _printable(char: str) -> bool:
    return char == " " or "\udc80" <= char <= "\udcff" or unicodedata.category(char)[0] in "LMNPS"


def _clean(path: str) -> str:
    if "//" not in path and "/." not in path and path[:1] == "/":
        return path
    clean = posixpath.normpath("/" + path.lstrip("/"))
    return clean + "/" if path.endswith("/") and clean != "/" else clean


def _redirect(request: Request, path: str, status: int) -> Refusal:
    encoded = quote(path.encode("utf-8", "surrogateescape"), safe=_LEFT_ALONE)
    location = f"{encoded}?{request.query}" if request.query else encoded
    headers = (("Location", location), ("Content-Type", "text/html; charset=utf-8"))
    if request.method != "GET":
        return Refusal(status, "", headers if request.method == "HEAD" else headers[:1])
    what = "Moved Permanently" if status == CONSUL_1_8.redirect else "Temporary Redirect"
    page = f'<a href="{location.translate(_HTML)}">{what}</a>.\n\n'
    return Refusal(status, page, headers)
