"""Parse train.log for facts about a run: devices, data, reasons. The sentences are those that `training.run` writes."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

_LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (.*)")
_NUMBER = r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)"
_RATE = re.compile(rf"(?:step|epoch) \d+: .*learning rate {_NUMBER} -> {_NUMBER}(?:[,;] .*)?")
_STOPPED = re.compile(r"stopped at (step \d+(?:, epoch \d+)?): (.*)")
_CONTINUED = re.compile(r"continuing at step \d+, epoch \d+")
_USED = re.compile("training (?:pairs|texts|lines): (.*)")
_DEVICES = "devices: "
"""Beginning of the log of each start. The oldest logs have no such line."""
_SIZE = re.compile(r"([\d,]+) parameters; vocabularies of (\d+) and (\d+)")


class RateChange(NamedTuple):
    """A change of the learning rate.

    Attributes:
      sentence: the sentence in the log, with the time, the reason and both rates.
      before, after: the rates.
    """

    sentence: str
    before: float
    after: float


@dataclass(frozen=True)
class Log:
    """The facts in a log. A fact that is not recorded is ""; if there are several starts, the last one counts.

    Attributes:
      begun, ended: times of the first and the last line.
      devices: devices of the run, with library versions.
      examples: number of training pairs, texts or lines that are used and skipped.
      batches: batches per epoch, their shapes and padding.
      parameters, source_words, target_words: number of parameters and of vocabulary entries.
      rates: changes of the learning rate between epochs or at validations. Changes at every update are not logged.
      origin: step and workdir of the initial parameters, such as "step 441 of runs/base".
      starts: number of times that training was started.
      stopped: where the last start stopped; "" if it is in progress or was killed.
      why: the reason why it stopped: a limit, a signal or an error.
      time: how the time since the last start was spent.
    """

    begun: str = ""
    ended: str = ""
    devices: str = ""
    examples: str = ""
    batches: str = ""
    parameters: str = ""
    source_words: str = ""
    target_words: str = ""
    rates: tuple[RateChange, ...] = ()
    origin: str = ""
    starts: int = 0
    stopped: str = ""
    why: str = ""
    time: str = ""


def read(text: str) -> Log:
    """Parse the text of a log. Malformed lines are skipped."""
    lines = [found.groups() for line in text.split("\n") if (found := _LINE.fullmatch(line))]
    sentences = [sentence for _, sentence in lines]
    begins = [i for i, sentence in enumerate(sentences) if sentence.startswith(_DEVICES)]
    continued = [i for i, sentence in enumerate(sentences) if _CONTINUED.fullmatch(sentence)]
    last = sentences[max(begins + continued, default=0) :]
    stopped = _last(_STOPPED, last)  # a tracker may log something after it
    size = _last(_SIZE, sentences)
    rates = [found for sentence in sentences if (found := _RATE.fullmatch(sentence))]
    return Log(
        begun=lines[0][0] if lines else "",
        ended=lines[-1][0] if lines else "",
        devices=_after(_DEVICES, sentences),
        examples=used[1] if (used := _last(_USED, sentences)) else "",
        batches=_after("batches: ", sentences),
        parameters=size[1] if size else "",
        source_words=size[2] if size else "",
        target_words=size[3] if size else "",
        rates=tuple(dict.fromkeys(RateChange(one.string, float(one[1]), float(one[2])) for one in rates)),
        origin=_after("fine-tuning: parameters of ", sentences),
        starts=max(len(begins), len(continued) + 1) if lines else 0,
        stopped=stopped[1] if stopped else "",
        why=stopped[2].rstrip(".") if stopped else "",
        time=_after("time: ", last),
    )


def _last(pattern: re.Pattern[str], sentences: Sequence[str]) -> re.Match[str] | None:
    """The last sentence of this form."""
    return next((found for sentence in reversed(sentences) if (found := pattern.fullmatch(sentence))), None)


def _after(beginning: str, sentences: Sequence[str]) -> str:
    """The rest of the last sentence with this beginning."""
    return next((s.removeprefix(beginning) for s in reversed(sentences) if s.startswith(beginning)), "")
