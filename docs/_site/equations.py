"""Puts the code of a function beside the equation that names it."""

import ast
import re
from pathlib import Path

NAME = re.compile(r"`([\w.]+)`")
BLOCK = re.compile(r"(```math\n.*?\n```\n(?:\n```math\n.*?\n```\n)*)\n(Code: (?:[^\n]+,\n)*[^\n]+)\n", re.DOTALL)


def names(text: str) -> list[list[str]]:
    """The functions below each equation or group of equations."""
    return [NAME.findall(line) for _, line in BLOCK.findall(text)]


def source_of(name: str, root: Path) -> str:
    """The code of `nn.convolution.glu` as it stands in its file, without its docstring, which the reference has.

    Raises:
      LookupError: the package has no such function or class.
    """
    module, _, wanted = name.rpartition(".")
    path = root / "convs2s_jax" / (module.replace(".", "/") + ".py")
    text = path.read_text(encoding="utf-8")
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == wanted:
            lines = text.splitlines()
            start, end = node.lineno - 1, node.end_lineno
            first = node.body[0]
            kept = lines[start:end]
            if ast.get_docstring(node) is not None:
                kept = lines[start : first.lineno - 1] + lines[first.end_lineno : end]
            return "\n".join(re.sub(r"  # noqa.*", "", line) for line in kept)
    raise LookupError(f"{path} has no function or class '{wanted}'")


def with_code(text: str, root: Path) -> str:
    """The paper map in which each line `Code: ...` is followed by the code, beside the equations above."""

    def beside(found: re.Match[str]) -> str:
        blocks = [
            f"```{{code-block}} python\n:caption: {name}\n\n{source_of(name, root)}\n```"
            for name in NAME.findall(found[2])
        ]
        halves = [":::{container} equation", found[1], ":::", ":::{container} code", *blocks, ":::"]
        return "\n".join(["::::{container} equation-and-code", *halves, "::::", ""])

    return "---\nhide-toc: true\n---\n\n" + BLOCK.sub(beside, text)
