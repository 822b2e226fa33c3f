"""Reference pages made of docstrings: the public names of the library, and the functions that the paper map names."""

import ast
import re
import textwrap
from pathlib import Path

import griffe

PUBLIC = ("The model", "Training", "Decoding and the rest")
"""Titles of the tables of public names in docs/library.md, in their order."""
ROW = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)
MAPPED = re.compile(r"\| `((?:convs2s_jax\.)?[a-z_0-9.]+\.\w+)` \|")
HEAD = """# The library, from its docstrings

Signatures and docstrings as they are in the source; `[source]` shows the code. [The guide](../library.md) explains how
the pieces fit, and has recipes. Axis letters are [the same everywhere](../library.md#axis-letters).
"""


def pages(root: Path) -> dict[str, str]:
    """The pages of the reference: place on the site -> Markdown."""
    package = griffe.load(
        "convs2s_jax", search_paths=[root], docstring_parser="google", docstring_options={"warnings": False}
    )
    places = public(root)
    section = (root / "docs" / "library.md").read_text(encoding="utf-8").split("## Public names")[1].split("\n## ")[0]
    tables = [ROW.findall(table) for table in section.split("\n\nFunctions of ")[1:]]
    found = {"reference/index.md": ""}
    for title, names in zip(PUBLIC, tables, strict=True):
        # the pages of the source link back to where a name is defined
        parts = [
            f'<a id="convs2s_jax.{places[name]}"></a>\n\n{entry(package[places[name]], name, "convs2s_jax")}'
            for name in names
        ]
        found[f"reference/{_slug(title)}.md"] = "\n".join([f"# {title}", "", "`import convs2s_jax`", "", *parts])
    found["reference/functions-of-the-paper-map.md"] = _mapped(package, root)
    names = [name.removeprefix("reference/") for name in found if not name.endswith("index.md")]
    listed = [f"* [{found[f'reference/{name}'].partition(chr(10))[0][2:]}]({name})" for name in names]
    tree = ["", "```{toctree}", ":hidden:", "", *names, "```", ""]
    found["reference/index.md"] = "\n".join([HEAD, *listed, *tree])
    return found


def public(root: Path) -> dict[str, str]:
    """Public names and their places below the package, as the package itself has them."""
    tree = ast.parse((root / "convs2s_jax" / "__init__.py").read_text(encoding="utf-8"))
    values = {node.targets[0].id: node.value for node in tree.body if isinstance(node, ast.Assign)}
    return ast.literal_eval(values["_PLACES"])


def linked(text: str, root: Path) -> str:
    """The paper map with each function linked to its entry in the reference: that of its public name, if it has one."""
    names = {place: name for name, place in public(root).items()}

    def link(found: re.Match[str]) -> str:
        place = found[1].removeprefix("convs2s_jax.")
        return f"| {{py:obj}}`{place} <convs2s_jax.{names.get(place, place)}>` |"

    return MAPPED.sub(link, text)


def _mapped(package: griffe.Module, root: Path) -> str:
    """Functions of the paper map by module, in its order."""
    text = (root / "docs" / "paper-map.md").read_text(encoding="utf-8")
    about = "[The map](../paper-map.md) leads from papers to these; what has a public name is under that name."
    parts = ["# Functions of the paper map", "", about, ""]
    seen: dict[str, list[str]] = {}
    for name in dict.fromkeys(name.removeprefix("convs2s_jax.") for name in MAPPED.findall(text)):
        if name in public(root).values():
            continue
        module, _, attribute = name.rpartition(".")
        seen.setdefault(module, []).append(attribute)
    for module, attributes in seen.items():
        parts += [f"## {module}", ""]
        # pages of the source link back to all names of a module by the same prefix, which may be that of public names
        parts += [
            f'<a id="convs2s_jax.{one}"></a>\n\n{entry(package[f"{module}.{one}"], one, f"convs2s_jax.{module}")}'
            for one in attributes
        ]
    return "\n".join(parts)


def entry(item: griffe.Object, name: str, module: str) -> str:
    """A function or a class with its docstring, as a directive of Sphinx."""
    if isinstance(item, griffe.Function):
        head = f"```````{{py:function}} {name}({_signature(item)})" + (f" -> {item.returns}" if item.returns else "")
    else:
        head = f"```````{{py:class}} {name}"
    sections = item.docstring.parsed if item.docstring else []
    body = "\n\n".join(_section(section, item) for section in sections)
    return f"{head}\n:module: {module}\n\n{body}\n```````\n"


def _signature(function: griffe.Function) -> str:
    """Parameters with types and defaults, as they are written in Python."""
    written: list[str] = []
    star = False
    for one in function.parameters:
        kind = one.kind
        if kind is griffe.ParameterKind.keyword_only and not star:
            written.append("*")
            star = True
        stars = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}.get(kind, "")
        star |= stars == "*"
        annotation = f": {one.annotation}" if one.annotation is not None else ""
        default = f" = {one.default}" if one.default is not None and not stars else ""
        written.append(f"{stars}{one.name}{annotation}{default}")
        if kind is griffe.ParameterKind.positional_only:
            following = [p for p in function.parameters if p.kind is griffe.ParameterKind.positional_only]
            if following[-1] is one:
                written.append("/")
    return ", ".join(written)


def _section(section: griffe.DocstringSection, item: griffe.Object) -> str:
    """A section of a docstring in Markdown."""
    match section.kind.value:
        case "text":
            return _escaped(section.value)
        case "attributes":
            lines = [_attribute(one, item) for one in section.value]
            return "**Fields**\n\n" + "\n".join(lines)
        case "parameters" | "other parameters":
            return "**Arguments**\n\n" + "\n".join(_item(f"`{one.name}`", one.description) for one in section.value)
        case "raises":
            return "**Raises**\n\n" + "\n".join(_item(f"`{one.annotation}`", one.description) for one in section.value)
        case "returns" | "yields":
            return "**Returns**\n\n" + "\n\n".join(_escaped(one.description) for one in section.value)
        case _:
            return _escaped(str(section.value.contents if hasattr(section.value, "contents") else section.value))


def _attribute(one: griffe.DocstringAttribute, item: griffe.Object) -> str:
    """A field of a record: its type and default stand in the class, or in one that it extends."""
    member = item.all_members.get(one.name)
    facts = []
    if member is not None and member.is_attribute:
        if member.annotation is not None:
            facts.append(f"`{member.annotation}`")
        if member.value is not None:
            facts.append(f"default `{member.value}`")
    return _item(f"`{one.name}`" + (f" ({', '.join(facts)})" if facts else ""), one.description)


def _item(head: str, text: str) -> str:
    return textwrap.indent(f"* {head}: {_escaped(text)}", "  ").lstrip()


def _escaped(text: str) -> str:
    """Text of a docstring as Markdown: angle brackets outside code are no tags, and dollars no equations."""
    parts = re.split(r"(`[^`]*`)", text.strip())
    return "".join(p if p.startswith("`") else re.sub(r"([<$])", r"\\\1", p) for p in parts)


def _slug(title: str) -> str:
    return title.lower().replace(" ", "-")
