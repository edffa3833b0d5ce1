"""Plots of a quality report as inline SVG: drawn by matplotlib, colored by the page.

Colors in an SVG are placeholders that become CSS variables of the page (--fg, --line, --s1 ...), so one plot suits light and
dark pages. No plot refers to anything outside of the page.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Mapping, Sequence

import matplotlib
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pcaplake.common.plain_text import visible

SERIES = 7
_FG, _LINE = "#010101", "#020202"
_COLORS = [f"#0a000{number}" for number in range(1, SERIES + 1)]
_VARIABLES = {_FG: "var(--fg)", _LINE: "var(--line)"} | {
    color: f"var(--s{number})" for number, color in enumerate(_COLORS, 1)
}
_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "pcaplake",
    "text.parse_math": False,
    "text.color": _FG,
    "axes.labelcolor": _FG,
    "axes.edgecolor": _LINE,
    "xtick.color": _FG,
    "ytick.color": _FG,
    "grid.color": _LINE,
    "font.size": 10,
}
_WIDTH = 9.6  # inches; the page scales it
_BAR = 0.34
_LONGEST_LABEL = 28


@matplotlib.rc_context(_STYLE)
def plot_horizontal_bars(values: Mapping[str, int], description: str, *, name: str) -> Markup:
    """One horizontal bar for each value, in order. Screen readers read `description`; `name` makes the ids of the plot unique."""
    figure = Figure(figsize=(_WIDTH, 0.6 + _BAR * max(1, len(values))))
    axes = figure.add_subplot()
    places = range(len(values))
    axes.barh(places, [float(value) for value in values.values()], color=_COLORS[0], height=0.72)
    axes.set_yticks(places, [_shorten_label(label) for label in values])
    axes.invert_yaxis()
    most = float(max(values.values(), default=0))
    axes.set_xlim(0, max(most, 1) * 1.16)
    for place, value in zip(places, values.values(), strict=True):
        axes.text(value + max(most, 1) * 0.008, place, f"{value:,}", va="center", fontsize=9)
    axes.set_xticks([])
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.tick_params(length=0)
    return _render_svg(figure, description, name)


@matplotlib.rc_context(_STYLE)
def plot_stacked_columns(
    days: Sequence[str], series: Mapping[str, Sequence[int]], description: str, *, name: str
) -> Markup:
    """One column for each day, stacked from at most SERIES series."""
    figure = Figure(figsize=(_WIDTH, 3.4))
    axes = figure.add_subplot()
    bottom = [0.0] * len(days)  # floats, because a sum of int64 values may exceed int64
    for color, (series_name, values) in zip(_COLORS, series.items(), strict=False):
        label = _shorten_label(series_name)
        label = f" {label}" if label.startswith("_") else label  # a legend omits labels that begin with _
        axes.bar(
            range(len(days)), [float(value) for value in values], bottom=bottom, color=color, width=0.8, label=label
        )
        bottom = [below + value for below, value in zip(bottom, values, strict=True)]
    every = max(1, -(-len(days) // 8))
    axes.set_xticks(range(0, len(days), every), [days[place] for place in range(0, len(days), every)])
    axes.set_xlim(-0.6, max(len(days), 6) - 0.4)  # keeps the column of a single day narrow
    axes.set_ylim(0, max([*bottom, 1]) * 1.05)
    _format_thousands(axes)
    axes.grid(axis="y", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0)
    axes.legend(loc="upper left", bbox_to_anchor=(0, 1.14), ncols=4, frameon=False, borderpad=0, fontsize=9)
    return _render_svg(figure, description, name)


def _format_thousands(axes: Axes) -> None:
    axes.yaxis.set_major_formatter(lambda value, place: f"{value:,.0f}")
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))


def _shorten_label(text: str) -> str:
    """Shorten a name. Names come from captures, so any character is shown as text."""
    shown = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in visible(text))
    return shown if len(shown) <= _LONGEST_LABEL else shown[: _LONGEST_LABEL - 1] + "…"


def _render_svg(figure: Figure, label: str, name: str) -> Markup:
    drawn = io.StringIO()
    with warnings.catch_warnings():
        # about letters that matplotlib's font lacks; the page uses another font
        warnings.simplefilter("ignore", UserWarning)
        figure.savefig(
            drawn,
            format="svg",
            transparent=True,
            bbox_inches="tight",
            metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")),
        )
    return Markup(_make_embeddable(drawn.getvalue(), label, name))


def _make_embeddable(svg: str, label: str, name: str) -> str:
    """Make an SVG embeddable in a page: no prologue, metadata and namespaces, unique ids, and the colors of the page."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\s(?:xmlns(?::\w+)?|version)="[^"]*"', "", svg)
    svg = re.sub(r'(\bid="|url\(#|xlink:href="#)', rf"\g<1>{name}-", svg)
    for color, variable in _VARIABLES.items():
        svg = svg.replace(color, variable)
    return svg.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1)
