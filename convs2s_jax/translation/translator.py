"""Trained models taken out of their workdirs, ready to translate."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import jax

from convs2s_jax.core.errors import UserError
from convs2s_jax.data import vocabulary
from convs2s_jax.data.vocabulary import Vocabularies, Vocabulary
from convs2s_jax.models import encoder_decoder
from convs2s_jax.models.average import average
from convs2s_jax.models.encoder_decoder import ModelConfig, Params
from convs2s_jax.nn.types import Tree
from convs2s_jax.training import restoring
from convs2s_jax.training import workdir as layout
from convs2s_jax.training.config import Config

Dtype = Literal["float32", "bfloat16"]


@dataclasses.dataclass(frozen=True)
class Translator:
    """A model for decoding, or an ensemble of several.

    Attributes:
      cfg: of the run; of an ensemble, the first member's, whose search options and corpus count.
      models: the model, or a tuple of the members' models.
      params: its merged parameters, or a tuple of as many.
      vocabularies: of all members.
      steps: of each member, the checkpoints that its parameters are the mean of.
    """

    cfg: Config
    models: ModelConfig | tuple[ModelConfig, ...]
    params: Params | tuple[Params, ...]
    vocabularies: Vocabularies
    steps: tuple[tuple[int, ...], ...]

    @property
    def max_source(self) -> int:
        """Longest source that every member has positions for, its end symbol counted."""
        return min(model.max_source for model in self._members)

    @property
    def max_target(self) -> int:
        """Longest target that every member has positions for, its end symbol counted."""
        return min(model.max_target for model in self._members)

    @property
    def attends(self) -> bool:
        """Whether every member has an attention that says which source tokens it looked at."""
        return all(model.attends for model in self._members)

    @property
    def _members(self) -> tuple[ModelConfig, ...]:
        return self.models if isinstance(self.models, tuple) else (self.models,)


def load(
    workdirs: Path | Sequence[Path],
    *,
    steps: Sequence[int] = (),
    dtype: Dtype | None = None,
    tell: Callable[[str], None],
) -> Translator:
    """The model of a workdir, or the ensemble of several.

    Args:
      workdirs: of train.py; the probabilities of several are averaged in the search.
      steps: of the checkpoint, in every workdir; of several, the mean of the merged kernels is taken (why those:
        models/average.py). Without any, the one with the least validation loss.
      dtype: of products and activations; None for the runs' own.
      tell: gets a sentence for each checkpoint that is damaged and passed over.

    Raises:
      UserError: no configuration, vocabulary or whole checkpoint there, a vocabulary of another model, or an ensemble
        whose members have different vocabularies.
    """
    workdirs = [workdirs] if isinstance(workdirs, Path) else list(workdirs)
    for step in steps:
        if steps.count(step) > 1:
            raise UserError(f"--checkpoint names step {step} twice: a mean takes each checkpoint once")
    members = [_load(workdir, steps, dtype, tell) for workdir in workdirs]
    first = members[0]
    for workdir, member in zip(workdirs[1:], members[1:], strict=True):
        for side in ("source", "target"):
            _check_same(side, workdirs[0], first.vocabularies, workdir, member.vocabularies)
    if len(members) == 1:
        return first
    return dataclasses.replace(
        first,
        models=tuple(member.cfg.model for member in members),
        params=tuple(member.params for member in members),  # type: ignore[misc]  # a member is no ensemble
        steps=tuple(member.steps[0] for member in members),
    )


def ready(translator: Translator) -> Translator:
    """The same, faster: with all that decoding needs again and again computed once (`encoder_decoder.ready`)."""
    prepare = jax.jit(encoder_decoder.ready, static_argnums=1)
    models, params = translator.models, translator.params
    if isinstance(models, ModelConfig) or isinstance(params, Params):
        return dataclasses.replace(translator, params=prepare(params, models))
    return dataclasses.replace(translator, params=tuple(prepare(p, c) for p, c in zip(params, models, strict=True)))


def _load(workdir: Path, steps: Sequence[int], dtype: Dtype | None, tell: Callable[[str], None]) -> Translator:
    cfg = layout.read_config(workdir)
    if dtype is not None:
        cfg = dataclasses.replace(cfg, model=dataclasses.replace(cfg.model, dtype=dtype))
    vocabularies = vocabulary.load(layout.vocabulary(workdir))

    def fresh(key: jax.Array) -> Tree:
        params = encoder_decoder.init(
            key, cfg.model, source_vocabulary=vocabularies.src.size, target_vocabulary=vocabularies.tgt.size
        )
        return encoder_decoder.split(params, cfg.model)

    abstract = jax.eval_shape(fresh, jax.random.key(0))
    restore = partial(
        restoring.restore_params,
        layout.checkpoints(workdir),
        abstract,
        check=partial(layout.check_vocabularies, workdir, vocabularies),
        tell=tell,
    )
    found = [restore(step=step) for step in steps or (None,)]
    params = jax.jit(average)([tree for tree, _ in found])
    return Translator(cfg, cfg.model, params, vocabularies, (tuple(position["step"] for _, position in found),))


def _check_same(side: str, first: Path, one: Vocabularies, second: Path, other: Vocabularies) -> None:
    """Refuse an ensemble whose members would not speak of the same tokens."""
    a, b = (one.src, other.src) if side == "source" else (one.tgt, other.tgt)
    if a.fingerprint != b.fingerprint:
        raise UserError(
            f"--workdir: {first} and {second} have different {side} vocabularies ({_difference(a, b)}); "
            "an ensemble is of models that were trained with one vocabulary"
        )


def _difference(a: Vocabulary, b: Vocabulary) -> str:
    for i in itertools.count():
        one, other = (repr(v.token(i)) if i < v.size else "nothing" for v in (a, b))
        if one != other:
            return f"id {i} is {one} in the one and {other} in the other"
        if i >= max(a.size, b.size):
            break
    return "the tokens agree, how text is cut into them does not"
