"""Patch fairseq 3d262bb to run on Python 3.11 and current numpy:  python benchmarks/peer_adapt.py FAIRSEQ

FAIRSEQ is a checkout whose files are changed in place. Default values of dataclasses become factories, and names that
numpy has removed become Python's own. No arithmetic changes. Running the script again changes nothing.
"""

import re
import sys
from pathlib import Path

MADE = re.compile(r"^(?P<name>    \w+: (?P<kind>\w+Config) = )(?:field\(default=)?(?P=kind)\(\)\)?$", re.MULTILINE)
"""A field of a dataclass whose default is a new record of its own type."""
REMOVED = re.compile(r"\bnp\.(int|float)\b")
"""numpy names that were removed in version 1.24 in favour of Python's."""
DEFAULT = re.compile(r"(?P<field>FairseqConfig\.__dataclass_fields__\[k\])\.default$", re.MULTILINE)
"""Where fairseq reads the default of a field, which now has a factory."""
FOLDERS = ("data", "dataclass", "models/transformer", "modules")


def main() -> None:
    """Change the files and print their names."""
    package = Path(sys.argv[1]) / "fairseq"
    if not package.is_dir():
        sys.exit(f"{sys.argv[1]} has no folder fairseq; pass a checkout of fairseq")
    for path in sorted(path for folder in FOLDERS for path in (package / folder).glob("*.py")):
        before = path.read_text()
        after = adapted(before)
        if after != before:
            path.write_text(after)
            print(path)


def adapted(text: str) -> str:
    """Return the adapted text of a file."""
    text = MADE.sub(r"\g<name>field(default_factory=\g<kind>)", text)
    text = REMOVED.sub(r"\1", text)
    return DEFAULT.sub(r"\g<field>; v = v.default_factory() if callable(v.default_factory) else v.default", text)


if __name__ == "__main__":
    main()
