"""Draw a history: who waited, who held under which fence, and what went wrong around them.

Rules
- A picture needs nothing but itself: no script, no font, no file from elsewhere.
- Whatever comes from a record is escaped, and stripped of what XML cannot carry.
- Each bar has a tooltip with its text, also a bar that is too narrow for the text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Final

from consul_coord.testing.history.layout import HEADING, LANE, arrange, place_of
from consul_coord.testing.history.spans import read

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from consul_coord.testing.history.layout import Layout
    from consul_coord.testing.history.record import Record
    from consul_coord.testing.history.spans import Fault, Hold, Span, Spans, Wait

_LABELS: Final = 200.0
_AXIS: Final = 30.0
_LEGEND: Final = 40.0
_PAD: Final = 60.0
_LETTER: Final = 6.7
"""Width of a digit of a fence, in pixels."""
_NO_XML: Final = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_LOOKS: Final = {"acquired": "held", "elected": "led"}
_STYLE: Final = """
text { font: 12px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #24292f; }
.title { font-size: 16px; font-weight: 600; }
.tick { font-size: 11px; fill: #57606a; }
.group { font-weight: 600; font-size: 13px; }
.label { fill: #424a53; }
.row { fill: #f6f8fa; }
.line { stroke: #d8dee4; stroke-width: 1; }
.rule { stroke: #d0d7de; stroke-width: 1; }
.waiting { fill: #c6d3e1; }
.held { fill: #2f6fb0; }
.led { fill: #6f4bb2; }
.jeopardy { fill: #e8a33d; }
.dead { fill: url(#stripes); }
.untold { fill: none; stroke: #8c959f; stroke-dasharray: 3 2; }
.fence { font-size: 11px; font-weight: 600; fill: #ffffff; text-anchor: middle; }
.fence.beside { fill: #24292f; font-weight: 400; text-anchor: start; }
.lost { stroke: #c4302b; stroke-width: 2.2; fill: none; }
.write { fill: #ffffff; stroke: #17395c; stroke-width: 1; }
.refused { fill: #c4302b; }
.gave_up { stroke: #8c959f; stroke-width: 2; }
.fault { fill: #d9534f; fill-opacity: .75; }
.across { fill: #d9534f; fill-opacity: .07; }
.moment { stroke: #c4302b; stroke-width: 1; stroke-dasharray: 2 3; stroke-opacity: .45; }
.mark { fill: #a3231f; }
.started { fill: #2e8b57; }
.note { fill: #57606a; }
.said { font-size: 11px; fill: #ffffff; }
"""
_DEFS: Final = (
    '<defs><pattern id="stripes" width="6" height="6" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><rect width="6" height="6" fill="#f3c6c4"/>'
    '<rect width="3" height="6" fill="#c4302b"/></pattern></defs>'
)
_LEGEND_ENTRIES: Final = (
    ('<rect class="waiting" y="5" width="26" height="6"/>', "waiting"),
    ('<rect class="held" width="26" height="16" rx="2"/>', "held, with its fence"),
    ('<rect class="led" width="26" height="16" rx="2"/>', "leading"),
    ('<rect class="jeopardy" width="26" height="16" rx="2"/>', "in jeopardy"),
    ('<rect class="dead" width="26" height="16" rx="2"/>', "session ended, holder believes"),
    ('<rect class="untold" x=".5" y=".5" width="25" height="15"/>', "lease over, not told yet"),
    ('<path class="lost" d="M9 4l8 8m0-8l-8 8"/>', "lost"),
    ('<path class="gave_up" d="M13 3v10"/>', "gave up"),
    ('<circle class="write" cx="13" cy="8" r="3"/>', "fenced write"),
    ('<circle class="refused" cx="13" cy="8" r="3.5"/>', "write refused"),
    ('<rect class="fault" width="26" height="16" rx="2"/>', "fault"),
)
_PAGE: Final = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ margin: 16px; font: 14px system-ui, -apple-system, "Segoe UI", sans-serif; color: #24292f; }}
h1 {{ font-size: 18px; margin: 0 0 4px; }}
p {{ margin: 0 0 12px; color: #57606a; }}
.picture {{ display: grid; grid-template-columns: max-content max-content; overflow: auto;
  max-height: calc(100vh - 150px); border: 1px solid #d0d7de; }}
.picture svg {{ display: block; }}
.picture div {{ background: #ffffff; }}
.corner, .top {{ position: sticky; top: 0; z-index: 1; border-bottom: 1px solid #d0d7de; }}
.corner, .names {{ position: sticky; left: 0; z-index: 1; border-right: 1px solid #d0d7de; }}
.corner {{ z-index: 2; }}
</style></head><body>
<h1>{title}</h1>
<p>{summary}</p>
{legend}
<div class="picture">
<div class="corner"></div><div class="top">{axis}</div>
<div class="names">{names}</div><div>{chart}</div>
</div>
</body></html>
"""


@dataclass(frozen=True, slots=True)
class _Picture:
    """The parts of one drawing, each with the top left corner as its origin."""

    layout: Layout
    names: str
    axis: str
    chart: str
    summary: str

    @property
    def width(self) -> float:
        return self.layout.width + _PAD

    @property
    def height(self) -> float:
        return self.layout.height + 8


def svg(records: Iterable[Record], *, title: str = "Timeline") -> str:
    """Return a history, given in the order of time, as one SVG document."""
    picture = _draw(list(records))
    width = _LABELS + max(picture.width, _legend_width() - _LABELS + _LEGEND)
    top = 56.0 + _AXIS
    body = (
        f'<rect width="100%" height="100%" fill="#ffffff"/>'
        f'<text class="title" x="12" y="22">{_text(title)}</text>'
        f'<text class="tick" x="12" y="40">{_text(picture.summary)}</text>'
        f'<g transform="translate(0 {top})">{picture.names}</g>'
        f'<g transform="translate({_LABELS} {top - _AXIS})">{picture.axis}</g>'
        f'<g transform="translate({_LABELS} {top})">{picture.chart}</g>'
        f'<g transform="translate(12 {top + picture.height + 12:.0f})">{_legend()}</g>'
    )
    return _document(body, width=width, height=top + picture.height + _LEGEND, title=title)


def html(records: Iterable[Record], *, title: str = "Timeline") -> str:
    """Return a history as an HTML page: the picture scrolls, and the names of the lanes stay in sight."""
    picture = _draw(list(records))
    legend = _document(f'<g transform="translate(0 4)">{_legend()}</g>', width=_legend_width(), height=28)
    return _PAGE.format(
        title=_text(title),
        summary=_text(picture.summary),
        legend=legend,
        names=_document(picture.names, width=_LABELS, height=picture.height),
        axis=_document(picture.axis, width=picture.width, height=_AXIS),
        chart=_document(picture.chart, width=picture.width, height=picture.height),
    )


def _draw(records: Sequence[Record]) -> _Picture:
    spans = read(records)
    layout = arrange(records, spans)
    parts = (
        *_rows(layout),
        *_grid(layout),
        *_across(layout, spans),
        *(_wait(layout, wait) for wait in spans.waits),
        *_holds(layout, spans),
        *(_fault(layout, fault) for fault in spans.faults),
        *_marks(layout, records),
    )
    counts = (
        (len(spans.holds), "hold", "holds"),
        (sum(hold.how == "lost" for hold in spans.holds), "lost", "lost"),
        (sum(record.kind == "write" for record in records), "fenced write", "fenced writes"),
        (len(spans.faults), "fault", "faults"),
    )
    lasted = f"{spans.whole.ended - spans.whole.began:.1f} s"
    summary = ", ".join([lasted, *(f"{count} {one if count == 1 else more}" for count, one, more in counts)])
    return _Picture(layout, "".join(_names(layout)), "".join(_axis(layout)), "".join(parts), summary)


def _names(layout: Layout) -> Iterator[str]:
    for group in layout.groups:
        y = group.top + HEADING - 9
        yield f'<text class="group" x="12" y="{y:.1f}">{_text(_cut(group.title, 26))}</text>'
    for lane in layout.lanes.values():
        y = lane.top + LANE / 2 + 4
        yield f'<text class="label" x="20" y="{y:.1f}"><title>{_text(lane.label)}</title>'
        yield f"{_text(_cut(lane.label, 28))}</text>"


def _rows(layout: Layout) -> Iterator[str]:
    for number, lane in enumerate(layout.lanes.values()):
        if number % 2 == 0:
            yield _rect("row", 0, y=lane.top, width=layout.width, height=LANE)
    for group in layout.groups:
        y = group.top + HEADING - 2
        yield f'<path class="rule" d="M0 {y:.1f}H{layout.width:.1f}"/>'


def _axis(layout: Layout) -> Iterator[str]:
    for x, label in layout.ticks():
        yield f'<path class="line" d="M{x:.1f} {_AXIS - 6}V{_AXIS}"/>'
        yield f'<text class="tick" x="{x + 3:.1f}" y="{_AXIS - 12}">{label}</text>'


def _grid(layout: Layout) -> Iterator[str]:
    return (f'<path class="line" d="M{x:.1f} 0V{layout.height:.1f}"/>' for x, _ in layout.ticks())


def _across(layout: Layout, spans: Spans) -> Iterator[str]:
    """Yield the faults as bands, and those that do not last as lines, across everything."""
    for fault in spans.faults:
        x = layout.x(fault.span.began)
        if fault.lasts:
            yield _rect("across", x, y=0, width=max(layout.x(fault.span.ended) - x, 1), height=layout.height)
        else:
            yield f'<path class="moment" d="M{x:.1f} 0V{layout.height:.1f}"/>'


def _wait(layout: Layout, wait: Wait) -> str:
    lane = layout.lanes[wait.process, wait.actor, wait.key]
    title = f"waited {_length(wait.span)}; then {wait.how.replace('_', ' ')}"
    return _bar(layout, "waiting", wait.span, y=lane.top + LANE / 2 - 3, height=6, title=title)


def _holds(layout: Layout, spans: Spans) -> Iterator[str]:
    """Yield every hold, lane by lane: whether a fence fits beside a bar depends on the next one."""
    lanes: dict[tuple[str, str, str], list[Hold]] = {}
    for hold in spans.holds:
        lanes.setdefault((hold.process, hold.actor, hold.key), []).append(hold)
    for place, holds in lanes.items():
        top = layout.lanes[place].top + 3
        nexts = [*(layout.x(hold.relied.began) for hold in holds[1:]), layout.width + _PAD]
        for hold, free_until in zip(holds, nexts, strict=True):
            yield from _hold(layout, hold, top, free_until)


def _hold(layout: Layout, hold: Hold, top: float, free_until: float) -> Iterator[str]:
    height = LANE - 6
    title = (
        f"{hold.key}: {hold.process} {hold.actor}, fence {hold.fence}, {_length(hold.relied)}, "
        f"then {hold.how}{'; session ' + hold.session if hold.session else ''}"
    )
    yield _bar(layout, _LOOKS[hold.got], hold.relied, y=top, height=height, title=title)
    for span in hold.jeopardy:
        yield _bar(
            layout, "jeopardy", span, y=top, height=height, title=f"in jeopardy for {_length(span)}; {title}"
        )
    if hold.dead is not None:
        yield _bar(layout, "dead", hold.dead, y=top, height=height, title=f"its session had ended; {title}")
    x, end, known = layout.x(hold.relied.began), layout.x(hold.relied.ended), layout.x(hold.told)
    if known > end:
        yield _rect("untold", end, y=top + 0.5, width=known - end, height=height - 1)
    if hold.how in {"lost", "died"}:
        yield f'<path class="lost" d="M{known - 4:.1f} {top + 5:.1f}l8 8m0-8l-8 8"/>'
    fence = "?" if hold.fence is None else str(hold.fence)
    needs, y = len(fence) * _LETTER, top + 13
    if needs + 4 <= end - x:
        yield f'<text class="fence" x="{(x + end) / 2:.1f}" y="{y:.1f}">{fence}</text>'
    elif known + needs + 12 <= free_until:
        beside = known + (8 if hold.how in {"lost", "died"} else 3)
        yield f'<text class="fence beside" x="{beside:.1f}" y="{y:.1f}">{fence}</text>'


def _fault(layout: Layout, fault: Fault) -> str:
    lane = layout.lanes[fault.process, "", ""]
    y, x = lane.top + 4, layout.x(fault.span.began)
    if not fault.lasts:
        title = f"<title>{_text(fault.process)}: {_text(fault.detail)}</title>"
        return f'<path class="mark" d="M{x:.1f} {y:.1f}l5 8l-5 8l-5 -8z">{title}</path>'
    title = f"{fault.process}: {fault.detail}, {_length(fault.span)}"
    bar = _bar(layout, "fault", fault.span, y=y, height=LANE - 8, title=title)
    room = (layout.x(fault.span.ended) - x) / _LETTER - 1
    if room < len(fault.detail):
        return bar
    return f'{bar}<text class="said" x="{x + 4:.1f}" y="{y + 12:.1f}">{_text(fault.detail)}</text>'


def _marks(layout: Layout, records: Sequence[Record]) -> Iterator[str]:
    """Yield what happened in a moment, on its own lane."""
    shapes = {
        "write": '<circle class="write" cx="{x}" cy="{low}" r="2.5">{title}</circle>',
        "refused": '<circle class="refused" cx="{x}" cy="{mid}" r="3.5">{title}</circle>',
        "gave_up": '<path class="gave_up" d="M{x} {top}v12">{title}</path>',
        "started": '<path class="started" d="M{x} {top}l9 6l-9 6z">{title}</path>',
        "died": '<path class="lost" d="M{x} {top}m-5 1l10 10m0-10l-10 10">{title}</path>',
        "ended": '<circle class="note" cx="{x}" cy="{mid}" r="3">{title}</circle>',
        "note": '<path class="note" d="M{x} {top}l4 6l-4 6l-4 -6z">{title}</path>',
    }
    for record in records:
        if record.kind not in shapes:
            continue
        middle = layout.lanes[place_of(record)].top + LANE / 2
        told = (record.kind.replace("_", " "), record.detail, record.session)
        fence = "" if record.fence is None else f" under fence {record.fence}"
        yield shapes[record.kind].format(
            x=f"{layout.x(record.at):.1f}",
            top=f"{middle - 6:.1f}",
            mid=f"{middle:.1f}",
            low=f"{middle + 6.5:.1f}",
            title=f"<title>{_text(' '.join(filter(None, told)) + fence)}</title>",
        )


def _legend() -> str:
    parts: list[str] = []
    x = 0.0
    for shape, words in _LEGEND_ENTRIES:
        parts.append(f'<g transform="translate({x:.0f} 0)">{shape}<text x="32" y="12">{words}</text></g>')
        x += _entry_width(words)
    return "".join(parts)


def _legend_width() -> float:
    return sum(_entry_width(words) for _, words in _LEGEND_ENTRIES)


def _entry_width(words: str) -> float:
    return 48 + len(words) * _LETTER


def _document(body: str, *, width: float, height: float, title: str = "") -> str:
    named = f"<title>{_text(title)}</title>" if title else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}">{named}<style>{_STYLE}</style>{_DEFS}{body}</svg>'
    )


def _bar(layout: Layout, look: str, span: Span, *, y: float, height: float, title: str) -> str:
    x = layout.x(span.began)
    return _rect(look, x, y=y, width=max(layout.x(span.ended) - x, 1.5), height=height, title=title)


def _rect(look: str, x: float, *, y: float, width: float, height: float, title: str = "") -> str:
    told = f"<title>{_text(title)}</title>" if title else ""
    corner = ' rx="2"' if title else ""
    return (
        f'<rect class="{look}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"{corner}>'
        f"{told}</rect>"
    )


def _length(span: Span) -> str:
    seconds = span.ended - span.began
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _text(text: str) -> str:
    return escape(_NO_XML.sub("\N{REPLACEMENT CHARACTER}", text))
