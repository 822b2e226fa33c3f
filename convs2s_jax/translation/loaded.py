"""A trained model in memory, or an ensemble of several, with its vocabularies."""

import dataclasses
from collections.abc import Mapping

from convs2s_jax.data.vocabulary import Vocabularies
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.encoder_decoder import Params
from convs2s_jax.search.shortlist import Shortlist
from convs2s_jax.training.run.config import Config
from convs2s_jax.training.run.inputs import Known


@dataclasses.dataclass(frozen=True)
class LoadedModel:
    """A model for decoding, or an ensemble of several.

    Attributes:
      cfg: configuration of the run; for an ensemble, of the first member, whose search options and corpus are used.
      models: the model configuration, or a tuple with one per member; a language model (`fuse`) comes last.
      params: merged parameters, or a tuple with those of each model.
      vocabularies: vocabularies shared by all members.
      steps: for each member, the steps of the checkpoints that its parameters are averaged from.
      fingerprints: digest of each member, the language model last (`Trained.fingerprint`).
      splits: as in `Trained`; for an ensemble, those of the first member.
      shortlist: words that translations may use (`translation.shortlists`); None for all words.
    """

    cfg: Config
    models: ModelConfig | tuple[ModelConfig, ...]
    params: Params | tuple[Params, ...]
    vocabularies: Vocabularies
    steps: tuple[tuple[int, ...], ...]
    fingerprints: tuple[str, ...] = ()
    splits: Mapping[str, Known] = dataclasses.field(default_factory=dict)
    shortlist: Shortlist | None = None

    @property
    def max_source(self) -> int:
        """Maximum source length in tokens that every member has positions for, including the end symbol."""
        return min(model.max_source for model in self.members)

    @property
    def max_target(self) -> int:
        """Maximum target length in tokens that every member has positions for, including the end symbol."""
        return min(model.max_target for model in self.members)

    @property
    def reads_source(self) -> bool:
        """Whether the model reads a source. If not, it is a language model."""
        return any(model.reads_source for model in self.members)

    @property
    def attends(self) -> bool:
        """Whether every member that reads a source has attention weights over its tokens."""
        return self.reads_source and all(model.attends for model in self.members if model.reads_source)

    @property
    def members(self) -> tuple[ModelConfig, ...]:
        """The model configurations, one per member."""
        return self.models if isinstance(self.models, tuple) else (self.models,)

    @property
    def member_params(self) -> tuple[Params, ...]:
        """The parameters, one tree per member."""
        return self.params if isinstance(self.params, tuple) else (self.params,)
