"""A report as one HTML file with its pictures inside, readable without any outside host."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dsokr.plotting import pyplot
from dsokr.files import drafted

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #1c2330;
  background: #fff; overflow-wrap: break-word; }
h1 { margin-bottom: 0.2rem; line-height: 1.2; } h2 { margin-top: 2.2rem; } .lead { color: #51607a; margin-top: 0; }
.wide { overflow-x: auto; } table { border-collapse: collapse; margin: 1rem 0; }
td, th { padding: 0.35rem 0.9rem; text-align: right; }
th { border-bottom: 2px solid #1c2330; } td { border-bottom: 1px solid #dde2ea; }
td:first-child, th:first-child, .texts td, .texts th { text-align: left; }
.texts tr.right td { color: #1a7f37; } img { max-width: 100%; } tr.ours td { font-weight: 600; }
table.facts td { text-align: left; vertical-align: top; overflow-wrap: anywhere; }
table.facts td:first-child { color: #51607a; white-space: nowrap; overflow-wrap: normal; }
pre { background: #f4f6f9; padding: 0.8rem 1rem; border-radius: 6px; overflow-x: auto; }
.card { border: 1px solid #dde2ea; border-radius: 8px; padding: 0.8rem 1rem; margin: 1rem 0; }
.card p { margin: 0 0 0.6rem; } .row { display: flex; gap: 0.6rem; overflow-x: auto; }
figure { margin: 0; flex: 0 0 auto; width: 10.5rem; border: 2px solid #dde2ea; border-radius: 6px; padding: 0.3rem;
  box-sizing: border-box; } figure.right { border-color: #1a7f37; } figure.truth { border-style: dashed; }
figure svg { width: 100%; height: auto; display: block; } figure .cell { padding: 0.4rem 0.2rem; }
figcaption { font-size: 0.78rem; color: #51607a; overflow-wrap: anywhere; }
@media (max-width: 40rem) { body { margin: 1rem auto; } td, th { padding: 0.3rem 0.5rem; } .row { flex-wrap: wrap; }
  figure { width: calc(50% - 0.3rem); } table.facts td:first-child { white-space: normal; } }
"""


@dataclass(frozen=True)
class Tile:
    """One of several things side by side: SVG or text, what is said of it, and whether it is right or the truth."""

    caption: str
    svg: str = ""
    text: str = ""
    mark: str = ""  # right, truth or nothing


@dataclass
class Report:
    """Sections added one after the other, then written."""

    title: str
    lead: str
    parts: list[str] = field(default_factory=list)

    def heading(self, text: str) -> None:
        self.parts.append(f"<h2>{html.escape(text)}</h2>")

    def text(self, text: str) -> None:
        self.parts.append(f"<p>{html.escape(text)}</p>")

    def code(self, text: str) -> None:
        self.parts.append(f"<pre>{html.escape(text)}</pre>")

    def table(self, header: list[str], rows: list[list[str]], ours: str | None = None) -> None:
        """A table of numbers, whose row that starts with ``ours`` stands out."""
        self._table(header, rows, ["ours" if row[0] == ours else "" for row in rows], "")

    def texts(self, header: list[str], rows: list[list[str]], right: Collection[int] = ()) -> None:
        """A table of texts, with the rows at the positions ``right`` in green."""
        self._table(header, rows, ["right" if i in right else "" for i in range(len(rows))], "texts")

    def _table(self, header: list[str], rows: list[list[str]], marks: list[str], kind: str) -> None:
        head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
        body = "".join(
            f'<tr class="{mark}">{"".join(f"<td>{html.escape(cell)}</td>" for cell in row)}</tr>'
            for row, mark in zip(rows, marks, strict=True)
        )
        self.parts.append(f'<div class="wide"><table class="{kind}"><tr>{head}</tr>{body}</table></div>')

    def facts(self, facts: dict[str, str]) -> None:
        """Names and what they stand for, a line each."""
        body = "".join(
            f"<tr><td>{html.escape(name)}</td><td>{html.escape(value)}</td></tr>" for name, value in facts.items()
        )
        self.parts.append(f'<table class="facts">{body}</table>')

    def figure(self, fig: Any, alt: str) -> None:
        """A matplotlib figure, which is closed afterwards."""
        buffer = io.BytesIO()
        fig.savefig(buffer, format="png", dpi=130)
        pyplot().close(fig)
        data = base64.b64encode(buffer.getvalue()).decode()
        self.parts.append(f'<p><img src="data:image/png;base64,{data}" alt="{html.escape(alt)}"></p>')

    def card(self, text: str, tiles: Sequence[Tile]) -> None:
        """A framed line of text with tiles side by side under it."""
        self.parts.append(
            f'<div class="card"><p>{html.escape(text)}</p><div class="row">{"".join(map(_tile, tiles))}</div></div>'
        )

    def write(self, path: Path) -> Path:
        title, lead, body = html.escape(self.title), html.escape(self.lead), "".join(self.parts)
        page = (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width">'
            f"<title>{title}</title><style>{STYLE}</style></head>"
            f'<body><h1>{title}</h1><p class="lead">{lead}</p>{body}</body></html>'
        )
        with drafted(path) as draft:
            draft.write_text(page, encoding="utf-8")
        return path


def _tile(tile: Tile) -> str:
    inside = tile.svg[tile.svg.find("<svg") :] if tile.svg else f'<div class="cell">{html.escape(tile.text)}</div>'
    return f'<figure class="{tile.mark}">{inside}<figcaption>{html.escape(tile.caption)}</figcaption></figure>'
