"""Templates of prepared queries: one query that answers for every name that begins with its own.

Rules
- Of several templates whose name a looked-up name begins with, the longest counts; a query of exactly that
  name comes before all.
- ``${name.full}``, ``${name.prefix}``, ``${name.suffix}``, ``${match(N)}`` and ``${agent.segment}`` are put
  in, in every text of the service's block; ``$${`` is a literal ``${``. Groups that there are not are empty.
  Arithmetic and other expressions of Consul's language are refused.
- With ``RemoveEmptyTags``, tags that came out empty are left out.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

from consul_coord.server.failures import Refusal, StateError
from consul_coord.server.gotext import GoParseError
from consul_coord.server.regexps import compiled

if TYPE_CHECKING:
    from consul_coord.server.records import QueryRecord

TYPE: Final = "name_prefix_match"

_PLACE: Final = re.compile(r"\$(\$\{)|\$\{([^{}]*)\}")
_MATCH: Final = re.compile(r"\s*match\(\s*(\d+)\s*\)\s*")
_NAME: Final = re.compile(r"\s*([\w.]+)\s*(\(.*\))?\s*")
_UNCLOSED: Final = re.compile(r"(?<!\$)\$\{[^}]*$")
_NAMES: Final = ("name.full", "name.prefix", "name.suffix", "agent.segment")


def check(query: QueryRecord) -> None:
    """Refuse a template that can't be one."""
    if not query.template_type:
        return
    if query.template_type != TYPE:
        raise _bad(f"Bad Template.Type '{query.template_type}'")
    try:
        compiled(query.template_regexp)
    except GoParseError as error:
        raise _bad(f"Bad Regexp: {error}") from None
    _put_in(
        json.loads(query.service), dict.fromkeys(_NAMES, ""), (), "Service"
    )  # which finds what is unknown


def rendered(query: QueryRecord, name: str) -> QueryRecord:
    """Return a template as the query that it is for a name."""
    found = compiled(query.template_regexp).search(name) if query.template_regexp else None
    groups = () if found is None else (found[0], *(group or "" for group in found.groups()))
    names = {
        "name.full": name,
        "name.prefix": query.name,
        "name.suffix": name[len(query.name) :],
        "agent.segment": "",
    }
    service: dict[str, Any] = _put_in(json.loads(query.service), names, groups, "Service")
    if query.template_remove_empty_tags and service.get("Tags"):
        service["Tags"] = [tag for tag in service["Tags"] if tag.strip()]
    return replace(query, service=json.dumps(service))


def _put_in(value: Any, names: dict[str, str], groups: tuple[str, ...], place: str) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, str):
        return _text(value, names, groups, place)
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        return {key: _put_in(each, names, groups, f"{place}.{key}") for key, each in members.items()}
    if isinstance(value, list):
        items = list[Any](value)  # pyright: ignore[reportUnknownArgumentType]
        return [_put_in(each, names, groups, f"{place}[{number}]") for number, each in enumerate(items)]
    return value


def _text(text: str, names: dict[str, str], groups: tuple[str, ...], place: str) -> str:
    if _UNCLOSED.search(text):
        raise _bad(f"Bad format '{text}' in {place}: parse error: syntax error")

    def put_in(found: re.Match[str]) -> str:
        if found[1]:
            return found[1]
        said = found[2].strip()
        if said in names:
            return names[said]
        if match := _MATCH.fullmatch(said):
            number = int(match[1])
            return groups[number] if number < len(groups) else ""
        if (unknown := _NAME.fullmatch(said)) is None:
            raise Refusal(501, f"The reference server does not compute {found[0]}: use a Consul agent for it")
        kind = "function called" if unknown[2] else "variable accessed"
        why = f"1:{found.start() + 3}: unknown {kind}: {unknown[1]}"
        raise _bad(f"Bad evaluation for '{text}' in {place}: {why}")

    return _PLACE.sub(put_in, text)


def _bad(why: str) -> StateError:
    return StateError(f"failed compiling template: {why}")
