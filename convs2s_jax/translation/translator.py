"""Trained models, loaded from their workdirs and ready to translate."""

import dataclasses
import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax

from convs2s_jax.core.config import check
from convs2s_jax.core.errors import Tell, UserError, located
from convs2s_jax.core.places import check_place
from convs2s_jax.models import conversion
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.encoder_decoder import Params
from convs2s_jax.nn.types import Key
from convs2s_jax.search.batching import DEFAULT_BATCHING, Batching
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.search.strategies import Strategy
from convs2s_jax.translation import arguments, trained
from convs2s_jax.translation.lines import LoadedModel, TextRequest, translate
from convs2s_jax.translation.results import Result
from convs2s_jax.translation.trained import Dtype, Steps, Trained


@dataclasses.dataclass(frozen=True)
class Translator(LoadedModel):
    """A loaded model that translates and scores lines of text. It checks its arguments (`translation.arguments`)."""

    def translate(
        self,
        lines: Iterable[str],
        *,
        search: SearchConfig | None = None,
        prefix: Iterable[str] | None = None,
        constraints: Iterable[Iterable[str]] | None = None,
        nbest: int | None = 1,
        replace_unk: bool = False,
        unk_dictionary: Mapping[str, str] | None = None,
        attention: bool = True,
        key: Key | None = None,
        strategy: Strategy | None = None,
        batching: Batching = DEFAULT_BATCHING,
    ) -> list[Result]:
        """Translate lines of text. Return one result per line, in order; `result.best.text` is the translation.

        Args:
          lines: lines of text; an empty line has an empty translation, except with a language model, which reads no
            source. A line break at the end is removed, so that an open file can be passed.
          search: search options; None for those of the run (`cfg.search`).
          prefix: for each line, words that its translation must begin with; "" for none.
          constraints: for each line, phrases that its translation must contain, in any order.
          nbest, replace_unk, unk_dictionary, attention, key, strategy, batching: as in `TextRequest`.

        Raises:
          TypeError: `lines` is a single string, or a line is not a str.
          ValueError: a line contains a line break; options that do not fit together, the search or the model.
          UserError: prefix or constraints differ in number from the lines, contain a word that is not in the target
            vocabulary, do not fit into a translation, or are given for an empty line.
        """
        request = TextRequest(
            self.cfg.search if search is None else search,
            arguments.texts_of("line", lines),
            prefix=None if prefix is None else arguments.texts_of("prefix", prefix),
            constraints=None if constraints is None else arguments.phrases_of(constraints),
            nbest=nbest,
            replace_unk=replace_unk,
            unk_dictionary=unk_dictionary,
            attention=attention,
            key=key,
            strategy=strategy,
            batching=batching,
        )
        if replace_unk and not self.attends:
            raise ValueError("replace_unk: this model has no attention to find the source words; leave it out")
        if unk_dictionary is not None and not replace_unk:
            raise ValueError("unk_dictionary without replace_unk: no unknown word is replaced; set replace_unk=True")
        arguments.check_required(self, request)
        return translate(self, request)

    def score(
        self,
        lines: Iterable[str],
        targets: Iterable[str],
        *,
        search: SearchConfig | None = None,
        batching: Batching = DEFAULT_BATCHING,
    ) -> list[Result]:
        """Score given translations, with the scores that the search would report for their tokens.

        Args:
          lines: lines of source text, as in `translate`.
          targets: one translation per line. A translation longer than the model's positions has score -inf and no
            tokens.
          search: temperature, penalties and normalisation; None for those of the run.
          batching: as in `translate`.

        Raises:
          TypeError, ValueError: as `translate`; the numbers of lines differ.
        """
        search = self.cfg.search if search is None else search
        texts, given = arguments.texts_of("line", lines), arguments.texts_of("target", targets)
        return translate(self, TextRequest(search, texts, targets=given, batching=batching))


def load(
    workdirs: Path | str | Sequence[Path | str],
    *,
    steps: Steps = (),
    dtype: Dtype | None = None,
    tell: Tell = warnings.warn,
    given_as: str = "workdirs",
) -> Translator:
    """Load the model of a workdir, or an ensemble from several.

    Args:
      workdirs: one or several workdirs of training runs, or their addresses in object stores (gs://BUCKET/NAME,
        s3://BUCKET/NAME); the search averages the probabilities of several.
      steps: steps of the checkpoints to load from every workdir, or "last:N" for the last N of each. The merged kernels
        of several are averaged (`models.conversion.average`). If empty, the best checkpoint according to the run's
        `training.best_metric` is loaded.
      dtype: dtype of matrix products and activations; None for that of each run.
      tell: receives a message for each damaged checkpoint that is skipped, and one with the steps that "last:N" expands
        to if there are several. By default, messages become warnings.
      given_as: the argument or flag that the workdirs come from, for messages.

    Raises:
      UserError: there is no workdir; a configuration, vocabulary or complete checkpoint is missing; the members of an
        ensemble have different vocabularies.
    """
    given = [workdirs] if isinstance(workdirs, Path | str) else list(workdirs)
    check(len(given) > 0, f"{given_as} is empty; pass a workdir, or several for an ensemble")
    check_place(given_as, given, stores=True)
    places = [str(each) for each in given]
    members = [_load(place, steps, dtype, tell, given_as) for place in places]
    first = members[0]
    for place, member in zip(places[1:], members[1:], strict=True):
        check(
            member.reads_source == first.reads_source,
            f"{given_as}: either {places[0]} or {place} is a language model, which reads no source; convs2s decode "
            "takes one as --lm beside translation models",
        )
        a, b = (one.cfg.data.normalize for one in (first, member))
        check(a == b, f"{given_as}: data.normalize is {a} in {places[0]} and {b} in {place}; it must be the same")
        for side in ("src", "tgt"):
            a, b = (getattr(one.vocabularies, side) for one in (first, member))
            check(
                a.fingerprint == b.fingerprint,
                f"{given_as}: {places[0]} and {place} have different vocabularies ({side}); train all members of an "
                "ensemble with the same vocabularies",
            )
    if len(members) == 1:
        return first
    return dataclasses.replace(
        first,
        models=tuple(member.cfg.translator for member in members),
        params=tuple(member.params for member in members),  # type: ignore[misc]  # a member is not an ensemble
        steps=tuple(member.steps[0] for member in members),
        fingerprints=tuple(member.fingerprints[0] for member in members),
    )


def from_trained(found: Trained) -> Translator:
    """Return a trained model as a translator. Raises UserError for a model of another kind."""
    cfg, fingerprints = found.cfg, (found.fingerprint,)
    return Translator(cfg, cfg.translator, found.params, found.vocabularies, (found.steps,), fingerprints, found.splits)


def fuse(
    translator: Translator, lm: Translator, *, names: tuple[str, str] = ("the model", "the language model")
) -> Translator:
    """Add a language model to a translator (shallow fusion), for a search with `lm_weight`.

    Args:
      translator: a translation model, or an ensemble.
      lm: a language model with the same target vocabulary.
      names: names of both, for messages.

    Raises:
      UserError: `lm` reads a source, `translator` does not, or their target vocabularies differ.
    """
    one, other = names
    if lm.reads_source or not isinstance(lm.models, ModelConfig) or not isinstance(lm.params, Params):
        raise UserError(
            f"--lm: {other} reads a source; use the workdir of a single language model (model.encoder.kind 'none')"
        )
    check(
        translator.reads_source,
        f"--lm: {one} is itself a language model; --lm adds a language model to a translation model; leave it out",
    )
    check(
        translator.vocabularies.tgt.fingerprint == lm.vocabularies.tgt.fingerprint,
        f"--lm: {one} and {other} have different target vocabularies; train the language model with "
        "data.vocabulary.dir=WORKDIR/vocab of the other",
    )
    return dataclasses.replace(
        translator,
        models=(*translator.members, lm.models),
        params=(*translator.member_params, lm.params),
        fingerprints=(*translator.fingerprints, *lm.fingerprints),
    )


def precomputed(translator: Translator, *, int8: bool = False) -> Translator:
    """Precompute what all decoding steps share (`conversion.precompute`). Return a new translator.

    Args:
      translator: a model, or an ensemble.
      int8: whether to compute convolutions and the softmax with 8-bit integers (`conversion.quantize_kernels`).

    Raises:
      UserError: with `int8`, no model has a kernel that can be quantised.
    """
    models = zip(translator.member_params, translator.members, strict=True)
    made: Any = tuple(_prepared(p, c, int8) for p, c in models)
    check(
        not int8 or conversion.has_integers(made),
        "--int8: this model has no convolution or softmax kernel that can be quantised to 8-bit integers; leave it out",
    )
    made = made if isinstance(translator.params, tuple) else made[0]
    return dataclasses.replace(translator, params=made)


@partial(jax.jit, static_argnums=(1, 2))
def _prepared(params: Params, cfg: ModelConfig, int8: bool) -> Params:
    made = conversion.precompute(params, cfg)
    return conversion.quantize_kernels(made) if int8 else made


def _load(workdir: str, steps: Steps, dtype: Dtype | None, tell: Tell, given_as: str) -> Translator:
    found = trained.restore_from(workdir, steps, dtype, tell, given_as=given_as)
    with located(f"{given_as}={workdir}"):
        return from_trained(found)
