"""Shows the project's docstrings, which are plain text, as they are meant: used by mkdocs.yml when the site is built.

Lines like `name      what it is` become a list, and an asterisk, as in (B, C, *S), stays an asterisk.
"""

import re
from typing import Any

import griffe


def as_markdown(text: str) -> str:
    lines: list[str] = []
    listed = False
    for line in text.splitlines():
        entry = re.fullmatch(r"(\w+) {2,}(\S.*)", line)
        if entry:
            lines += [] if listed else [""]
            lines.append(f"- `{entry[1]}`: {escaped(entry[2])}")
            listed = True
        elif listed and line.startswith(" "):
            lines.append(f"    {escaped(line.strip())}")
        else:
            lines += [""] if listed else []
            lines.append(escaped(line))
            listed = False
    return "\n".join(lines)


def escaped(line: str) -> str:
    """Asterisks and angle brackets outside of backticks are themselves."""
    parts = line.split("`")
    parts[::2] = [part.replace("*", r"\*").replace("<", "&lt;") for part in parts[::2]]
    return "`".join(parts)


class PlainDocstrings(griffe.Extension):
    def on_object(self, *, obj: Any, **kwargs: Any) -> None:
        if obj.is_attribute and str(obj.annotation) == "ClassVar":
            obj.annotation = None  # griffe takes a bare ClassVar for a field and would show it as an argument
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)
