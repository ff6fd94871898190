"""What one looks at: pictures of records, and what becomes of a record step by step."""

from __future__ import annotations

from fastload.display.explain import Explanation, explain
from fastload.display.pictures import FIGURE_STYLE, figure
from fastload.display.show import describe_html, show

__all__ = ["FIGURE_STYLE", "Explanation", "describe_html", "explain", "figure", "show"]
