"""Docstrings as Markdown for the reference page: parameters as lists, examples as code, plain names of classes."""

import re
from typing import Any

from griffe import Extension

HEADING = re.compile(r"^Parameters\n-+\n(.*?)(?=\n\n|\Z)", re.DOTALL | re.MULTILINE)
ITEM = re.compile(r"^(\w+(?:, \w+)*) : ", re.MULTILINE)
EXAMPLE = re.compile(r"^>>> .*?(?=\n\n|\Z)", re.DOTALL | re.MULTILINE)
ROLE = re.compile(r":\w+:`~?(?:[\w.]*\.)?(\w+)`")


def markdown(text: str) -> str:
    """A docstring of this project as Markdown."""
    text = EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", text)
    text = HEADING.sub(lambda found: "**Parameters**\n\n" + ITEM.sub(r"- `\1`: ", found[1]), text)
    return ROLE.sub(r"`\1`", text)


class Plain(Extension):
    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)
