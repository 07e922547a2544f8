"""Filters that nest deep or go on for long: each is answered, in a time that grows with its length."""

from __future__ import annotations

import sys
from urllib.parse import quote

import pytest

from tests.server.driver import Answer, Driver

DEEPEST = 64
ONE = "Service == web"
WRONG = (
    '1:{} ({}): no match found, expected: "(", "-", "0", "\\"", "`", "not", [ \\t\\r\\n], [1-9] or [a-zA-Z]'
)


@pytest.fixture
def agent() -> Driver:
    driver = Driver()
    assert driver.ask("PUT", "/v1/agent/service/register", {"Name": "web"}).status == 200
    return driver


def found(agent: Driver, expression: str) -> Answer:
    return agent.ask("GET", f"/v1/agent/services?filter={quote(expression)}")


@pytest.mark.parametrize("depth", [1, 2, DEEPEST - 1])
def test_brackets_change_nothing(agent: Driver, depth: int) -> None:
    assert list(found(agent, "(" * depth + ONE + ")" * depth).json) == ["web"]
    assert found(agent, "not " + "(" * (depth - 1) + ONE + ")" * (depth - 1)).json == {}


@pytest.mark.parametrize("depth", [1, 2, 5, DEEPEST - 1])
def test_the_errors_of_nested_brackets(agent: Driver, depth: int) -> None:
    """Each is Consul's own, which takes seconds for five levels."""
    brackets = "(" * depth
    wrong = WRONG.format(depth + 1, depth)
    end = depth + len(ONE)
    for expression, error in [
        (brackets, wrong),
        (brackets + "!" + ")" * depth, wrong),
        (brackets + ONE, f'1:{end + 1} ({end}): rule "grouping": Unmatched parentheses'),
    ]:
        answer = found(agent, expression)
        assert (answer.status, answer.text) == (
            500,
            f"Failed to create boolean expression evaluator: {error}",
        )


@pytest.mark.parametrize("word", ["not ", "(", "not ("])
@pytest.mark.parametrize("levels", [DEEPEST + 1, sys.getrecursionlimit(), 20_000])
def test_what_nests_too_deep_is_refused(agent: Driver, word: str, levels: int) -> None:
    answer = found(agent, word * levels + ONE + ")" * levels * word.count("("))
    assert (answer.status, answer.text) == (
        500,
        "Failed to create boolean expression evaluator: max number of expressions parsed",
    )


@pytest.mark.parametrize("word", [" and ", " or "])
def test_a_chain_may_be_long(agent: Driver, word: str) -> None:
    assert list(found(agent, word.join([ONE] * 3000)).json) == ["web"]
    other = word.join([*[ONE] * 3000, "Service == other"])
    assert list(found(agent, other).json) == (["web"] if word == " or " else [])
