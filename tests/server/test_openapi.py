"""The description of what the server serves: all of it, nothing else, with the fields of bodies as read."""

from __future__ import annotations

import json

from consul_coord.server import ServerConfig
from consul_coord.server.openapi import describe
from consul_coord.server.routes import ROUTES
from tests.server.driver import Driver

DOCUMENT = describe(ServerConfig())


def test_every_route_and_method_is_described() -> None:
    described = {
        (path.removesuffix("{name}"), method.upper())
        for path, methods in DOCUMENT["paths"].items()
        for method in methods
        if method != "parameters"
    }
    assert described == {(route.path, method) for route in ROUTES for method in route.handlers}
    assert json.loads(json.dumps(DOCUMENT)) == DOCUMENT


def test_every_operation_says_what_it_does() -> None:
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            assert method == "parameters" or operation["summary"].endswith("."), (path, method)


def test_a_body_has_the_fields_that_the_endpoint_reads() -> None:
    operation = DOCUMENT["paths"]["/v1/txn"]["put"]["requestBody"]["content"]["application/json"]["schema"]
    kinds = operation["items"]["properties"]
    assert list(kinds) == ["KV", "Node", "Service", "Check"]
    assert kinds["KV"]["properties"]["Flags"] == {"type": "integer", "minimum": 0, "maximum": 2**64 - 1}
    for kind, schema in kinds.items():
        for field in schema["properties"]:
            answer = Driver().ask("PUT", "/v1/txn", [{kind: {field: None}}])
            assert "unknown field" not in answer.text
