"""Lets fairseq 3d262bb run on Python 3.11 and today's numpy:  python benchmarks/peer_adapt.py FAIRSEQ

FAIRSEQ is a checkout, whose files are changed in place: default values of dataclasses become factories, and names that
numpy has removed become Python's own. No arithmetic changes. Running it again changes nothing.
"""

import re
import sys
from pathlib import Path

MADE = re.compile(r"^(?P<name>    \w+: (?P<kind>\w+Config) = )(?:field\(default=)?(?P=kind)\(\)\)?$", re.MULTILINE)
"""A field of a dataclass whose default is a new record of its own type."""
REMOVED = re.compile(r"\bnp\.(int|float)\b")
"""Names of numpy that are Python's since version 1.24."""
DEFAULT = re.compile(r"(?P<field>FairseqConfig\.__dataclass_fields__\[k\])\.default$", re.MULTILINE)
"""Where fairseq reads the default of a field, which has a factory now."""
FOLDERS = ("data", "dataclass", "models/transformer", "modules")


def main() -> None:
    """Change the files and name them."""
    package = Path(sys.argv[1]) / "fairseq"
    if not package.is_dir():
        sys.exit(f"{sys.argv[1]}: it has no folder fairseq; name a checkout of fairseq")
    for path in sorted(path for folder in FOLDERS for path in (package / folder).glob("*.py")):
        before = path.read_text()
        after = adapted(before)
        if after != before:
            path.write_text(after)
            print(path)


def adapted(text: str) -> str:
    """The text of a file, adapted."""
    text = MADE.sub(r"\g<name>field(default_factory=\g<kind>)", text)
    text = REMOVED.sub(r"\1", text)
    return DEFAULT.sub(r"\g<field>; v = v.default_factory() if callable(v.default_factory) else v.default", text)


if __name__ == "__main__":
    main()
