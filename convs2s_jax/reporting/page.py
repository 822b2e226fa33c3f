"""The report page: a single file that contains its data, styles and scripts."""

import html
import importlib.resources
import json
from collections.abc import Mapping
from typing import Any

PACKAGE = "convs2s_jax.reporting"
SHARED = "convs2s_jax.translation"
"""Its static files draw attention weights, here and on the server's page."""


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
    """JSON for a script element. No text of a corpus can end the element or begin a comment."""
    return json.dumps(data, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")


def script(code: str) -> str:
    """Code for a script element, with `</script` in strings escaped, since it would end the element."""
    return code.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _static(package: str, name: str) -> str:
    return importlib.resources.files(package).joinpath("static", name).read_text(encoding="utf-8")
