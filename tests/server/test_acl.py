"""ACLs inside: which rule decides, and that tokens do not show.

What requests may do with a token is in ``tests/conformance/test_acl.py``: for this server, and for a real
agent.
"""

from __future__ import annotations

from consul_coord.server.acl import AclConfig, Authorizer, Rule, Token
from consul_coord.server.config import ServerConfig


def test_the_longest_rule_decides() -> None:
    rules = (
        Rule("key", "a/", "write", prefix=True),
        Rule("key", "a/b", "read", prefix=True),
        Rule("key", "a/bc", "deny"),
    )
    authorizer = Authorizer(Token(rules), "deny")
    may = {key: authorizer.may("key", key, "write") for key in ("a/", "a/b", "a/bc", "a/c", "b")}
    assert may == {"a/": True, "a/b": False, "a/bc": False, "a/c": True, "b": False}
    assert authorizer.may("key", "a/bcd", "read")
    assert not authorizer.may("key", "a/bc", "read")


def test_tokens_do_not_show() -> None:
    acl = AclConfig(tokens={"of-a-token": Token()}, default_token="of-the-agent")
    for shown in (repr(acl), repr(ServerConfig(acl=acl))):
        assert "of-" not in shown
