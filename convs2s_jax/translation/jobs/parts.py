"""Decode an output in numbered parts, by any number of processes on any number of machines, and join the parts.

Part 3 of 16 of OUTPUT is OUTPUT.part-00003-of-00016: whole windows of the input, with a record as that of any output
(`output`). It is complete once its record covers all of its lines. A process that works on it holds the lock beside it.
In an object store, a part and then its record are written once it is complete.
"""

import contextlib
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from convs2s_jax.core import checksums, files, local_copies, stores
from convs2s_jax.core.config import check
from convs2s_jax.core.errors import Tell
from convs2s_jax.core.places import scheme_of
from convs2s_jax.training.run import lock
from convs2s_jax.training.run.lock import InUseError
from convs2s_jax.translation.jobs import decoding
from convs2s_jax.translation.jobs import output as records
from convs2s_jax.translation.jobs.job import Job
from convs2s_jax.translation.jobs.options import Options
from convs2s_jax.translation.jobs.output import SUFFIX, Finished
from convs2s_jax.translation.jobs.reading import TOTAL


def decode(options: Options, *, tell: Tell) -> None:
    """Decode parts until each is complete or held by another process. Arguments and errors as in `decoding.decode`."""
    with decoding.opened(options, tell) as (job, local, say):
        refused = decode_parts(job, local, say, range(options.parts))
    report(options.output, options.parts, tell, *refused)


def decode_parts(job: Job, options: Options, tell: Tell, numbers: Sequence[int]) -> list[InUseError]:
    """Decode the parts of these numbers. Return errors for those that other processes hold."""
    for text in job.texts.values():
        check(text.again, f"{text.name}: each process of --parts reads it, but it can be read only once; use a file")
    lines, made_of = job.lines or 0, {**job.dependencies, **job.whole}
    windows = -(-lines // job.size)
    ends = [min(lines, i * windows // options.parts * job.size) for i in range(options.parts + 1)]
    left, refused, patient = [*numbers], list[InUseError](), False
    while left:
        held = list[int]()
        refused.clear()
        for i in left:
            place, use = place_of(options.output, i, options.parts), "decoding it; wait until it ends, or stop it"
            if _complete(place, made_of):
                continue
            try:
                with _usable(place), lock.held(f"{place}.lock", f"--output={place}", use, patient=patient):
                    if _complete(place, made_of):  # meanwhile
                        continue
                    with _written(place) as path:
                        part = range(ends[i], ends[i + 1])
                        decoding.decode_lines(job, path, tell, resume=path == place, lines=part)
            except InUseError as error:
                held.append(i)
                refused.append(error)
        stuck = len(held) == len(left)
        left, patient = [] if stuck and patient else held, patient or stuck
    return refused


def place_of(output: str, number: int, count: int) -> str:
    """Return the path or address of a part; numbers start at 0."""
    return f"{output}.part-{number:05}-of-{count:05}"


def report(output: str, count: int, tell: Tell, *refused: InUseError) -> None:
    """Tell whether all parts are complete. `refused` are errors for those that others hold."""
    left = [place for place in (place_of(output, i, count) for i in range(count)) if not _complete(place)]
    if left:
        tell(f"{len(left)} of {count} parts are not complete, but held by other processes: {[*refused, *left][0]}")
    else:
        tell(f"all {count} parts are complete: join them with convs2s merge --output={output}")


@contextlib.contextmanager
def _usable(place: str) -> Iterator[None]:
    """Turn an OSError of the block into a UserError about the output."""
    try:
        yield
    except OSError as error:
        if scheme_of(place):
            raise local_copies.unusable("--output", place, error) from error
        with files.writing(f"--output={place}", "choose another file"):
            raise


def _complete(place: str, made_of: dict[str, Any] | None = None) -> dict[str, Any] | None:
    """Return the record of a part if it is complete. Raises UserError if it was not made of `made_of`."""
    record = records.read_record(place + SUFFIX)
    if record is None or not (scheme_of(place) or os.path.isfile(place)):
        return None
    if made_of is not None:
        records.check_same(place, record["made_of"], made_of)
    return record if record["lines"] == record["of"] else None


def merge(output: str, *, tell: Tell) -> None:
    """Join the parts of an output, with the bytes and the record that one process would have written.

    Args:
      output: its path or address; it is replaced as a whole.
      tell: receives what was done.

    Raises:
      UserError: a part is missing, incomplete, damaged, or of another command; or the output cannot be written.
    """
    folder, _, name = output.rpartition("/")
    with _usable(output):
        names = stores.names(folder, name) if scheme_of(output) else os.listdir(Path(output).parent)
    pattern = rf"{re.escape(name)}\.part-[0-9]{{5,}}-of-([0-9]{{5,}})"
    counts = sorted({int(match[1]) for each in names if (match := re.fullmatch(pattern, each))})
    check(bool(counts), f"--output={output} has no parts: write them with convs2s decode --parts=N --output={output}")
    check(
        len(counts) == 1,
        f"--output={output} has parts of {' and '.join(map(str, counts))}: delete those of one division",
    )
    again = f"run the command with --parts={counts[0]} again, and merge when it has ended"
    parts, whole, digests, made_of = dict[str, dict[str, Any]](), Finished(), Counter[str](), None
    for place in (place_of(output, i, counts[0]) for i in range(counts[0])):
        record = _complete(place, made_of)
        check(record is not None, f"{place} is not complete: {again}")
        parts[place] = record or {}
        made_of = parts[place]["made_of"]
    with _usable(output), _written(output) as path:
        path = os.path.realpath(path)
        with files.replacing(Path(path)) as joined, open(joined, "wb") as file:
            for place, record in parts.items():
                state, size = checksums.stream(), record["size"] + 1
                for block in [stores.read(place)] if scheme_of(place) else records.blocks(Path(place), size):
                    for update in (state.update, whole.content.update, file.write):
                        update(block)
                check(
                    state.hexdigest() == record["content"],
                    f"{place} has changed since it was written: delete it, {again}",
                )
                digests.update(record["read"])
                whole.lines += record["lines"]
            whole.size = file.tell()
            file.flush()
            os.fsync(file.fileno())
        whole.read = {label: value % checksums.WRAP for label, value in digests.items()}
        made_of = {key: value for key, value in (made_of or {}).items() if key not in (TOTAL, *digests)}
        files.replace_file(Path(path + SUFFIX), records.record_text(made_of, whole, whole.lines))
    tell(
        f"{output}: {whole.lines} lines of {counts[0]} parts; for scores, repeat the command that decoded them with "
        "--resume --reference=FILE in place of --parts"
    )


@contextlib.contextmanager
def _written(place: str) -> Iterator[str]:
    """Yield a path; for an address, a temporary one, whose file and its record are then written to the address."""
    if not scheme_of(place):
        yield place
        return
    with tempfile.TemporaryDirectory(prefix=local_copies.PREFIX) as folder:
        path = f"{folder}/output"
        with local_copies.address_in_errors(path, place):
            yield path
        for suffix in ("", SUFFIX):
            stores.write(place + suffix, Path(f"{path}{suffix}").read_bytes())
