"""Equations as MathML, made when the site is built: browsers show it without scripts, fonts or a network."""

from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.errors import SphinxError
from sphinx.util.math import get_node_equation_number


def _mathml(latex: str, display: str) -> str:
    try:
        return convert(latex, display=display)
    except Exception as error:
        raise SphinxError(f"an equation is no LaTeX that latex2mathml reads: {latex!r}: {error}") from error


def inline(writer: Any, node: nodes.math) -> None:
    """Write an equation of a line."""
    writer.body.append(_mathml(node.astext(), "inline"))
    raise nodes.SkipNode


def block(writer: Any, node: nodes.math_block) -> None:
    """Write an equation of its own line."""
    number = f'<span class="eqno">({get_node_equation_number(writer, node)})</span>' if node.get("number") else ""
    writer.body.append(f'<div class="math">{number}{_mathml(node.astext(), "block")}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the renderer."""
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
