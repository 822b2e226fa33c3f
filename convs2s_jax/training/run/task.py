"""What the training loop has to know of a kind of model: how it is made, its loss, and how its outputs are judged."""

from collections.abc import Callable
from typing import Any, NamedTuple

from convs2s_jax.nn.types import Tree
from convs2s_jax.training.loss import LossSums


class Task(NamedTuple):
    """A kind of model in training. `cfg` is its config, of the class `config`; split, run: records of `prepare`.

    config: its config class: a field `kind` names it, `max_source` and `max_target` are the longest sides in tokens,
        end symbols counted, and it has fields `dtype` and `execution`.
    init(key, cfg, *, source, target) -> params, for vocabularies of so many entries.
    split(params, cfg) -> what is trained, kernels as direction and length where they are trained so.
    loss(params, cfg, batch, *, smoothing, shards, key) -> LossSums.
    vocabularies(cfg of the data, text, seed) -> Vocabularies, learned from the training text.
    check(split, vocabularies): raises UserError where a line of a split cannot be a target.
    outputs(params, cfg, cfg of the run, mesh, split, vocabularies, *, name, progress) -> what the model makes of each
        line of a split, as text. Each process does its share, and all get all.
    scores(cfg of the run, split, outputs) -> the numbers of a validation by name.
    details(split, outputs) -> more numbers, of the final test.
    """

    config: type
    init: Callable[..., Tree]
    split: Callable[..., Tree]
    loss: Callable[..., LossSums]
    vocabularies: Callable[..., Any]
    check: Callable[..., None]
    outputs: Callable[..., list[str]]
    scores: Callable[..., dict[str, float]]
    details: Callable[..., dict[str, float]]
