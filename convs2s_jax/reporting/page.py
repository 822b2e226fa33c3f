"""The page: one file with its data, styles and scripts inside."""

import html
import importlib.resources
import json
from collections.abc import Mapping
from typing import Any

PACKAGE = "convs2s_jax.reporting"
SHARED = "convs2s_jax.translation"
"""Its static files draw attention, here and on the page of the server."""


def page(data: Mapping[str, Any], *, charts: str) -> str:
    """The HTML of a report.

    Args:
      data: what `document.document` returns; JSON values.
      charts: the scripts that draw charts (`charts.bundle`).
    """
    parts = {
        "title": html.escape(data["title"]),
        "styles": _static(SHARED, "attention.css") + _static(PACKAGE, "report.css"),
        "data": embedded(data),
        "charts": script(charts),
        "attention": script(_static(SHARED, "attention.js")),
        "tables": script(_static(PACKAGE, "tables.js")),
        "report": script(_static(PACKAGE, "report.js")),
    }
    text = _static(PACKAGE, "report.html")
    for name, part in parts.items():
        before, mark, after = text.partition(f"<!-- {name} -->")
        if not mark:
            raise ValueError(f"report.html has no place for {name}")
        text = before + part + after
    return text


def embedded(data: Any) -> str:
    """JSON inside a script element: no text of a corpus can end it or begin a comment."""
    return json.dumps(data, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")


def script(code: str) -> str:
    """Code inside a script element: `</script` within its strings would end it."""
    return code.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _static(package: str, name: str) -> str:
    return importlib.resources.files(package).joinpath("static", name).read_text(encoding="utf-8")
