"""Bars of samples/s, one panel a scenario, as SVG without a plotting library."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

from benchmarks.scenarios import is_ours

PANELS = ("image-uint8", "image-float32", "large-uint8", "evaluation-uint8", "raw-uint8")
_WIDTH, _NAMES, _BAR, _GAP = 720, 130, 18, 6
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#888}.title{font-weight:600}.other{fill:#9ab}.ours{fill:#d73}"
)


def _panel(result: Mapping[str, Any], top: int) -> tuple[list[str], int]:
    """Return one scenario's elements from ``top`` on, fastest loader first, and where the next begins."""
    rates = {name: metrics["samples_per_second"] for name, metrics in result["medians"].items()}
    most = max(rates.values())
    parts = [f'<text class="title" x="0" y="{top + 12}">{html.escape(result["title"])}, samples/s</text>']
    top += 22
    for name, rate in sorted(rates.items(), key=lambda item: -item[1]):
        width = (_WIDTH - _NAMES - 70) * rate / most
        kind = "ours" if is_ours(name) else "other"
        parts += [
            f'<text x="{_NAMES - 8}" y="{top + 13}" text-anchor="end">{html.escape(name)}</text>',
            f'<rect class="{kind}" x="{_NAMES}" y="{top}" width="{width:.1f}" height="{_BAR}"/>',
            f'<text x="{_NAMES + width + 6:.1f}" y="{top + 13}">{rate:,.0f}</text>',
        ]
        top += _BAR + _GAP
    return parts, top + 14


def render_plot(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return an SVG picture of the scenarios of PANELS that ``results`` has."""
    parts: list[str] = []
    top = 0
    for name in PANELS:
        if results.get(name, {}).get("medians"):
            panel, top = _panel(results[name], top)
            parts += panel
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top}" width="{_WIDTH}">'
        f"<style>{_STYLE}</style>\n" + "\n".join(parts) + "\n</svg>\n"
    )
