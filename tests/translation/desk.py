"""A folder with texts, what decoding writes into it, and every state in which a kill could leave it."""

import os
import random
from pathlib import Path
from unittest import mock

from convs2s_jax.translation.jobs import decoding, job, output, parts
from convs2s_jax.translation.jobs.options import Options


class Desk:
    """A folder with input, references and wishes, and what was told."""

    def __init__(self, folder: Path, workdir: Path, lines: list[str]) -> None:
        self.folder, self.workdir, self.told = folder, workdir, []
        self.lines = lines
        self.write("in", lines)
        self.write("reference", ["5 Kilowatt", "", "Norwegen", "b", "c", "d", "e", "f"])
        self.write("prefix", ["5", "", "Norwegen", "", "", "1", "", "5"])

    def write(self, name, lines):
        (self.folder / name).write_text("".join(f"{line}\n" for line in lines))

    def path(self, name):
        return str(self.folder / name)

    def read(self, name="out"):
        return (self.folder / name).read_bytes()

    def decode(self, *, output="out", **options):
        for name in ("reference", "prefix", "score"):
            if options.get(name) is True:
                path = self.path("reference" if name == "score" else name)
                options[name] = (path,) if name == "reference" else path
        self.told = []
        given = {"workdir": (str(self.workdir),), "input": self.path("in"), "output": self.path(output), **options}
        (parts if options.get("parts") else decoding).decode(Options(**given), tell=self.told.append)

    def interrupted(self, windows, **options):
        """`decode`, interrupted by the user after some windows."""
        left, real = [windows], job.translate

        def some(*arguments, **options):
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            return real(*arguments, **options)

        with mock.patch.object(job, "translate", some):
            try:
                self.decode(**options)
            except KeyboardInterrupt:
                return
        raise AssertionError("there were not so many windows")

    def files(self, name="out"):
        """The output and its record, None where there is none."""
        paths = (self.folder / name, self.folder / (name + output.SUFFIX))
        return tuple(path.read_bytes() if path.exists() else None for path in paths)

    def put(self, files, name="out"):
        """The output and its record as they were."""
        for path, content in zip((self.folder / name, self.folder / (name + output.SUFFIX)), files, strict=True):
            path.unlink(missing_ok=True)
            if content is not None:
                path.write_bytes(content)

    def states(self, rng: random.Random, **options):
        """`decode`, and what a kill could have left: the files after every system call, and within every write."""
        found = [self.files()]

        def watched(call):
            def watching(*arguments, **named):
                result = call(*arguments, **named)
                before, after = found[-1], self.files()
                if after != before:
                    grown = len(after[0] or b"") - len(before[0] or b"")
                    if grown > 1:
                        size = len(after[0]) - rng.randint(1, grown - 1)
                        found.append((after[0][:size], after[1]))
                    found.append(after)
                return result

            return watching

        names = ("write", "ftruncate", "replace", "open")
        with mock.patch.multiple(os, **{name: watched(getattr(os, name)) for name in names}):
            self.decode(**options)
        return found
