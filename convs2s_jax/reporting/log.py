"""What train.log says about a run: devices, data, reasons. It reads the sentences that `training.run` writes."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

_LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (.*)")
_RATE = re.compile(r"(step|epoch) \d+: .*learning rate \S+ -> \S+")
_STOPPED = re.compile(r"stopped at (step \d+, epoch \d+): (.*)")
_CONTINUED = re.compile(r"continuing at step \d+, epoch \d+")
_SIZE = re.compile(r"([\d,]+) parameters; vocabularies of (\d+) and (\d+)")


@dataclass(frozen=True)
class Log:
    """The facts of a log; "" for what it does not say, and of several starts the last one counts.

    Attributes:
      begun, ended: times of the first and the last line.
      devices: on which the run was, with the versions of what computes.
      pairs: how many training pairs are used and skipped.
      batches: batches of an epoch, their shapes and padding.
      parameters, source_words, target_words: numbers of parameters and of entries of the vocabularies.
      rates: a sentence for each reduction of the learning rate.
      continued: starts after the first.
      stopped: where training stopped; "" if it goes on or was killed.
      why: why it stopped.
      time: where the time of the last start went.
    """

    begun: str = ""
    ended: str = ""
    devices: str = ""
    pairs: str = ""
    batches: str = ""
    parameters: str = ""
    source_words: str = ""
    target_words: str = ""
    rates: tuple[str, ...] = ()
    continued: int = 0
    stopped: str = ""
    why: str = ""
    time: str = ""


def read(text: str) -> Log:
    """The facts of the text of a log; lines that are none are skipped."""
    lines = [found.groups() for line in text.splitlines() if (found := _LINE.fullmatch(line))]
    sentences = [sentence for _, sentence in lines]
    last = sentences[-1] if sentences else ""
    stopped = _STOPPED.fullmatch(last)
    size = next((found for sentence in reversed(sentences) if (found := _SIZE.fullmatch(sentence))), None)
    return Log(
        begun=lines[0][0] if lines else "",
        ended=lines[-1][0] if lines else "",
        devices=_after("devices: ", sentences),
        pairs=_after("training pairs: ", sentences),
        batches=_after("batches: ", sentences),
        parameters=size[1] if size else "",
        source_words=size[2] if size else "",
        target_words=size[3] if size else "",
        rates=tuple(dict.fromkeys(sentence for sentence in sentences if _RATE.match(sentence))),
        continued=sum(bool(_CONTINUED.fullmatch(sentence)) for sentence in sentences),
        stopped=stopped[1] if stopped else "",
        why=stopped[2] if stopped else "",
        time=_after("time: ", sentences) if stopped else "",
    )


def _after(beginning: str, sentences: Sequence[str]) -> str:
    """The rest of the last sentence that begins so."""
    return next((s.removeprefix(beginning) for s in reversed(sentences) if s.startswith(beginning)), "")
