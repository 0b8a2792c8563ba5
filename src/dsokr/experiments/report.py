"""A report as one HTML file with its pictures inside, readable without any outside host."""

from __future__ import annotations

import base64
import html
import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dsokr.plotting import pyplot

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #1c2330; }
h1 { margin-bottom: 0.2rem; } h2 { margin-top: 2.2rem; } .lead { color: #51607a; margin-top: 0; }
table { border-collapse: collapse; margin: 1rem 0; } td, th { padding: 0.35rem 0.9rem; text-align: right; }
th { border-bottom: 2px solid #1c2330; } td { border-bottom: 1px solid #dde2ea; }
td:first-child, th:first-child { text-align: left; } img { max-width: 100%; } tr.ours td { font-weight: 600; }
"""


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

    def table(self, header: list[str], rows: list[list[str]], ours: str) -> None:
        """A table whose row that starts with ``ours`` stands out."""
        head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
        body = "".join(
            f'<tr class="{"ours" if row[0] == ours else ""}">'
            + "".join(f"<td>{html.escape(cell)}</td>" for cell in row)
            + "</tr>"
            for row in rows
        )
        self.parts.append(f"<table><tr>{head}</tr>{body}</table>")

    def figure(self, fig: Any, alt: str) -> None:
        """A matplotlib figure, which is closed afterwards."""
        buffer = io.BytesIO()
        fig.savefig(buffer, format="png", dpi=130)
        pyplot().close(fig)
        data = base64.b64encode(buffer.getvalue()).decode()
        self.parts.append(f'<p><img src="data:image/png;base64,{data}" alt="{html.escape(alt)}"></p>')

    def write(self, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        title, lead, body = html.escape(self.title), html.escape(self.lead), "".join(self.parts)
        page = (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width">'
            f"<title>{title}</title><style>{STYLE}</style></head>"
            f'<body><h1>{title}</h1><p class="lead">{lead}</p>{body}</body></html>'
        )
        path.write_text(page, encoding="utf-8")
        return path
