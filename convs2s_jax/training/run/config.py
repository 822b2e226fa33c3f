"""The whole configuration of a run."""

import re
from typing import NamedTuple

from convs2s_jax.core.config import check, record
from convs2s_jax.core.errors import UserError, did_you_mean
from convs2s_jax.core.places import check_place
from convs2s_jax.data.config import DataConfig
from convs2s_jax.metrics import labels
from convs2s_jax.metrics.scoring import DEFAULT, METRICS
from convs2s_jax.models.classifier.model import ClassifierConfig
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.training.gathering import SumDtype
from convs2s_jax.training.mesh import MeshConfig, Parallel
from convs2s_jax.training.optimizer import AnyOptimizer, NesterovConfig
from convs2s_jax.training.run.reports.trackers import TRACKERS
from convs2s_jax.training.run.selection import LOSS
from convs2s_jax.training.schedule import CosineConfig, FixedConfig, InverseSqrtConfig, PlateauConfig

AnyModel = ModelConfig | ClassifierConfig
"""The config of any kind of model, told apart by `kind`, which also names its task (`run.tasks.task_table`)."""


class Traced(NamedTuple):
    """Updates that are traced.

    Attributes:
      first: number of the first one, from 1.
      steps: how many.
    """

    first: int
    steps: int


@record
class TrainingConfig:
    """How a model is trained.

    Attributes:
      optimizer: kind of optimiser and its constants.
      schedule: kind of learning rate schedule and its constants.
      clip: largest gradient norm; larger gradients are scaled down to it. 0 for no clipping.
      sum_dtype: in which gradients are summed over devices: "float32", or "bfloat16", which sends half the bytes.
        "auto" is float32 with `parallel` "shard_map" and "pmap", and the dtype of the model with "jit".
      label_smoothing: share of the target distribution that is spread over the vocabulary.
      max_steps: updates after which training ends; None for no limit.
      max_epochs: epochs after which training ends; None for no limit.
      report_every: updates between two lines of metrics.
      validate_every: updates between validations; None validates after each epoch.
      validate_bleu: whether each validation also translates (or labels) the validation set and scores the result.
      metrics: scores of the translations: names of bleu, chrf, ter, exact, rouge, d2l_bleu. (Labels have accuracy and
        F1.)
      bleu_tokenize: sacreBLEU's tokeniser; "none" for text that is tokenised already.
      best_metric: score of validations that tells which checkpoint is the best: the one that is kept, tested and
        decoded with. "loss" or "ter" (the lowest), or another score of `metrics` by its name in metrics.jsonl, such as
        bleu, chrf or exact_match (the highest); of labels, accuracy or macro_f1.
      patience: validations in a row without a better `best_metric` after which training ends; None for no such bound.
      save_every: updates between checkpoints, in addition to one at each validation; None for validations only.
      save_every_minutes: minutes after which the next report also saves a checkpoint, counted from the last one; 0 for
        none by the clock.
      keep: number of latest checkpoints to keep, besides the best.
      peak_flops: floating-point operations per second that one device can do, for `mfu` in the reports; None for those
        of its kind, where they are known.
      compile_ahead: number of threads that compile the batch shapes of an epoch and of its validation before they are
        needed; None for half of the host's cores, 2 to 8, on accelerators (0 on GPUs of several processes), and 0 on
        CPUs, where updates use all cores.
      profile: STEP:STEPS traces STEPS updates from update STEP on (the first is 1) by JAX's profiler, into the folder
        profile of the workdir; "" for none.
      trackers: services that get the metrics of each report too, from wandb and mlflow (docs/training.md).
      skip_bad_steps: number of updates in a row that may be skipped because their loss or gradient is not finite. They
        change nothing and are counted. One more ends training; with 0 the first one does.
      finetune_from: workdir of another run, to fine-tune its model: a new run begins with the parameters of its best
        checkpoint, and has its vocabularies. "" for random parameters.
    """

    optimizer: AnyOptimizer = NesterovConfig()
    schedule: PlateauConfig | FixedConfig | InverseSqrtConfig | CosineConfig = PlateauConfig()
    clip: float = 0.1
    sum_dtype: SumDtype = "auto"
    label_smoothing: float = 0.0
    max_steps: int | None = None
    max_epochs: int | None = None
    report_every: int = 50
    validate_every: int | None = None
    validate_bleu: bool = True
    metrics: tuple[str, ...] = DEFAULT
    bleu_tokenize: str = "13a"
    best_metric: str = LOSS
    patience: int | None = None
    save_every: int | None = None
    save_every_minutes: float = 0.0
    keep: int = 2
    skip_bad_steps: int = 0
    peak_flops: float | None = None
    compile_ahead: int | None = None
    profile: str = ""
    trackers: tuple[str, ...] = ()
    finetune_from: str = ""

    def __post_init__(self) -> None:
        check_place("finetune_from", self.finetune_from, stores=True)
        check(self.clip >= 0, f"clip is {self.clip}: a norm; use 0 to clip nothing")
        check(
            0 <= self.label_smoothing < 1, f"label_smoothing is {self.label_smoothing}: use 0 or more and less than 1"
        )
        for name in ("max_steps", "max_epochs", "report_every", "validate_every", "patience", "save_every", "keep"):
            value = getattr(self, name)
            check(value is None or value >= 1, f"{name} is {value}: use 1 or more")
        check(
            self.save_every_minutes >= 0,
            f"save_every_minutes is {self.save_every_minutes}: use 0 (never by the clock) or more",
        )
        check(len(self.metrics) > 0, f"metrics is empty: name one or more of {', '.join(METRICS)}")
        for metric in self.metrics:
            check(metric in METRICS, f"metrics has '{metric}'{did_you_mean(metric, METRICS)}")
        check(
            self.compile_ahead is None or 0 <= self.compile_ahead <= 64,
            f"compile_ahead is {self.compile_ahead}: a number of threads; use 0 (none) to 64",
        )
        check(
            self.peak_flops is None or self.peak_flops > 0,
            f"peak_flops is {self.peak_flops}: operations per second, such as 1.97e14; use more than 0",
        )
        check(self.skip_bad_steps >= 0, f"skip_bad_steps is {self.skip_bad_steps}: use 0 (none) or more")
        check(
            re.fullmatch("(0*[1-9][0-9]{0,8}:0*[1-9][0-9]{0,8})?", self.profile, re.ASCII) is not None,
            f"profile is '{self.profile}': write STEP:STEPS, two whole numbers from 1 on, as in 100:5",
        )
        for tracker in self.trackers:
            check(tracker in TRACKERS, f"trackers has '{tracker}'{did_you_mean(tracker, TRACKERS)}")

    @property
    def traced(self) -> Traced | None:
        """The updates that `profile` asks for."""
        return Traced(*map(int, self.profile.split(":"))) if self.profile else None


@record
class Config:
    """A run: its data, its model, how it is trained, and the search for validation, also the default in decoding.

    Attributes:
      data: the corpus, its vocabularies and batches.
      model: kind of model and its sizes.
      training: optimiser, schedule, bounds, validation, reports.
      search: beam search, for validation and as the default of decoding.
      seed: of initialisation, batch order, dropout and the sample that vocabularies are learned from.
      mesh: how the devices are laid out (docs/distributed.md).
      parallel: how an update is spread over the mesh: jit by the partitioner of XLA; explicit by shardings in types and
        shard_map by exchanges by name, both along data and fsdp, with tensor left to the partitioner; pmap with whole
        parameters, over data only. The results are the same (docs/parallel.md).
    """

    data: DataConfig
    model: AnyModel = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    search: SearchConfig = SearchConfig()
    seed: int = 1
    mesh: MeshConfig = MeshConfig()
    parallel: Parallel = "jit"

    def __post_init__(self) -> None:
        check(self.seed >= 0, f"seed is {self.seed}: use 0 or more")
        check(
            not (self.training.finetune_from and self.data.vocabulary.dir),
            "training.finetune_from brings the vocabularies of that run with it: leave data.vocabulary.dir out",
        )
        if isinstance(self.model, ModelConfig):
            self._check_sides(self.model)
        else:
            check(not self.data.one_sided, "data.src is not given: name the side of the texts, as in src='en'")
        self._check_best_metric()

    def _check_best_metric(self) -> None:
        """Refuse to compare checkpoints by a score that validations do not measure."""
        name, asked = self.training.best_metric, self.training.metrics
        check(
            name == LOSS or self.training.validate_bleu,
            f"training.best_metric is '{name}', and training.validate_bleu is False: set it to True, or use '{LOSS}'",
        )
        scores = labels.KEYS if self.classifies else [key for metric in asked for key in METRICS[metric].keys]
        measured = [LOSS, *scores]
        check(
            name in measured,
            f"training.best_metric is '{name}', which validations of this run do not measure"
            f"{did_you_mean(name, measured)}",
        )

    def _check_sides(self, model: ModelConfig) -> None:
        """Refuse a source that nobody reads, and what a model without a source or an attention cannot do."""
        reads, src = model.reads_source, self.data.src
        check(
            not self.data.labelled,
            f"data.corpus is '{self.data.corpus}', whose texts have labels: they are for model.kind 'classifier'; name "
            "a corpus of texts, or that kind",
        )
        check(
            not reads or not self.data.one_sided,
            "data.src is not given: name the side that is translated, as in src='de', or set model.encoder.kind to "
            "'none' for a language model of the target side",
        )
        check(src == "" or reads, f"data.src is '{src}', and model.encoder.kind 'none' reads no source: leave it out")
        check(
            reads or not self.training.validate_bleu,
            "training.validate_bleu is True, and a language model translates nothing: set it to False",
        )
        vocabulary = self.data.vocabulary
        check(
            not model.share_embeddings or vocabulary.joint or vocabulary.dir != "" or self.training.finetune_from != "",
            "model.share_embeddings is True, and each side has its own vocabulary: set data.vocabulary.joint to True",
        )
        check(
            self.search.lm_weight == 0,
            f"search.lm_weight is {self.search.lm_weight}: it goes with convs2s decode --lm and is given there",
        )
        check(
            model.attends or self.search.coverage_penalty == 0,
            f"search.coverage_penalty is {self.search.coverage_penalty}: a decoder without attention has none to cover "
            "the source with; use 0",
        )

    @property
    def classifies(self) -> bool:
        """Whether the model is a classifier, whose target is one label."""
        return isinstance(self.model, ClassifierConfig)

    @property
    def translator(self) -> ModelConfig:
        """The model, where it is one that translates.

        Raises:
          UserError: it is of another kind.
        """
        if isinstance(self.model, ModelConfig):
            return self.model
        raise UserError(f"model.kind is '{self.model.kind}': it does not translate; use a run of an encoder_decoder")
