"""Colors of charts, for light and dark pages."""

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["DARK", "LIGHT", "OTHER", "OURS", "Theme"]

OURS, OTHER = "ours", "other"
"""Prefixes of bar roles: the bundle's engines and others; a precision follows, such as `ours-int8`."""


@dataclass(frozen=True, kw_only=True)
class Theme:
    """Colors by use."""

    background: str
    text: str
    muted: str
    """Titles of panels, conditions."""
    line: str
    bars: Mapping[str, str]
    """By role."""


LIGHT = Theme(
    background="#ffffff",
    text="#24292f",
    muted="#57606a",
    line="#afb8c1",
    bars={"ours-int8": "#0b6e8f", "ours-fp32": "#6fb3c9", "other-int8": "#a8a29a", "other-fp32": "#d3cec6"},
)

DARK = Theme(
    background="none",
    text="#e6edf3",
    muted="#9da7b1",
    line="#57606a",
    bars={"ours-int8": "#39b6dd", "ours-fp32": "#2b7c96", "other-int8": "#75716b", "other-fp32": "#4f4c48"},
)
