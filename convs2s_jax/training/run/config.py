"""The whole configuration of a run."""

import re

from convs2s_jax.core.config import check, record
from convs2s_jax.core.errors import UserError, did_you_mean
from convs2s_jax.core.places import check_place
from convs2s_jax.data.config import DataConfig
from convs2s_jax.metrics import labels
from convs2s_jax.metrics.scoring import DEFAULT, METRICS
from convs2s_jax.models.classifier import ClassifierConfig
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.training.mesh import MeshConfig, Parallel
from convs2s_jax.training.optimizer import AnyOptimizer, NesterovConfig
from convs2s_jax.training.parallel import SumDtype
from convs2s_jax.training.run.reports.trackers import TRACKERS
from convs2s_jax.training.run.selection import LOSS
from convs2s_jax.training.schedule import AnySchedule, PlateauConfig

AnyModel = ModelConfig | ClassifierConfig
"""The config of any kind of model, identified by `kind`, which also determines its task (`run.tasks.task_table`)."""


@record
class TrainingConfig:
    """How a model is trained.

    Attributes:
      optimizer: kind of optimiser and its hyperparameters.
      schedule: kind of learning rate schedule and its hyperparameters.
      clip: maximum gradient norm; larger gradients are scaled down to it. 0 disables clipping.
      sum_dtype: dtype of the gradient reduction over devices: "float32", or "bfloat16", which sends half the bytes.
        "auto" is float32 with `parallel` "shard_map" and "pmap", and the dtype of the model with "jit".
        If "jit" reduces the gradients of several batches at once, "auto" is float32 too (docs/distributed.md).
      label_smoothing: share of the target distribution that is spread over the vocabulary.
      max_steps: maximum number of updates; None for no limit.
      max_epochs: maximum number of epochs; None for no limit.
      report_every: updates between two reports of metrics.
      validate_every: updates between validations; None validates after each epoch.
      validate_bleu: whether each validation also translates (or labels) the validation set and scores the result.
      metrics: scores to compute for the translations: any of bleu, chrf, ter, exact, rouge, d2l_bleu. (Classifiers
        report accuracy and F1.)
      bleu_tokenize: sacreBLEU's tokeniser; "none" for text that is already tokenised; "auto" chooses ja-mecab (char
        without its package), zh, char or 13a by the script of the references.
      best_metric: validation score that determines the best checkpoint, which is kept, tested and used for decoding:
        "loss" or "ter" (lowest is best), or another score of `metrics` by its name in metrics.jsonl, such as bleu, chrf
        or exact_match (highest is best); for classifiers, accuracy or macro_f1.
      patience: number of validations in a row without a better `best_metric` after which training ends; None for no
        limit.
      save_every: updates between checkpoints, in addition to one at each validation; None for validations only.
      save_every_minutes: minutes since the last checkpoint after which the next report also saves one; 0 disables this.
      keep: number of latest checkpoints to keep, in addition to the best.
      peak_flops: peak floating-point operations per second of one device, for `mfu` in the reports; None uses the known
        value for the kind of device, if there is one.
      compile_ahead: number of threads that compile the gradients of batch shapes before they are needed. None means
        half of the host's cores, between 2 and 8, on accelerators (0 for several GPU processes), and 0 on CPUs, where
        updates use all cores.
      profile: STEP:STEPS traces STEPS updates, starting with update STEP (the first is 1), with JAX's profiler into the
        folder profile of the workdir; "" for no trace.
      trackers: experiment trackers that also receive the metrics of each report: wandb, mlflow (docs/training.md).
      skip_bad_steps: maximum number of updates in a row that are skipped because their loss or gradient is not finite.
        They change nothing and are counted. One more ends training; with 0 the first one does.
      finetune_from: workdir of another run whose model is fine-tuned. The new run starts from the parameters of its
        best checkpoint and uses its vocabularies. "" for random parameters.
    """

    optimizer: AnyOptimizer = NesterovConfig()
    schedule: AnySchedule = PlateauConfig()
    clip: float = 0.1
    sum_dtype: SumDtype = "auto"
    label_smoothing: float = 0.0
    max_steps: int | None = None
    max_epochs: int | None = None
    report_every: int = 50
    validate_every: int | None = None
    validate_bleu: bool = True
    metrics: tuple[str, ...] = DEFAULT
    bleu_tokenize: str = "auto"
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
        check(
            0 <= self.label_smoothing < 1, f"label_smoothing is {self.label_smoothing}: use 0 or more and less than 1"
        )
        counts = ("max_steps", "max_epochs", "report_every", "validate_every", "patience", "save_every", "keep")
        for name, least, rule in (
            ("clip", 0, "0 (no clipping) or more"),
            ("save_every_minutes", 0, "0 (never by the clock) or more"),
            ("skip_bad_steps", 0, "0 (none) or more"),
            *((name, 1, "1 or more") for name in counts),
        ):
            value = getattr(self, name)
            check(value is None or value >= least, f"{name} is {value}: use {rule}")
        check(len(self.metrics) > 0, f"metrics is empty: use one or more of {', '.join(METRICS)}")
        for metric in self.metrics:
            check(metric in METRICS, f"metrics contains '{metric}'{did_you_mean(metric, METRICS)}")
        check(
            self.compile_ahead is None or 0 <= self.compile_ahead <= 64,
            f"compile_ahead is {self.compile_ahead}: use 0 (none) to 64 threads",
        )
        check(
            self.peak_flops is None or self.peak_flops > 0,
            f"peak_flops is {self.peak_flops}: use a positive number of operations per second, such as 1.97e14",
        )
        check(
            re.fullmatch("(0*[1-9][0-9]{0,8}:0*[1-9][0-9]{0,8})?", self.profile, re.ASCII) is not None,
            f"profile is '{self.profile}': use STEP:STEPS, two integers of at least 1, such as 100:5",
        )
        for tracker in self.trackers:
            check(tracker in TRACKERS, f"trackers contains '{tracker}'{did_you_mean(tracker, TRACKERS)}")

    @property
    def traced(self) -> tuple[int, int] | None:
        """Number of the first update that `profile` selects, from 1, and how many."""
        first, _, steps = self.profile.partition(":")
        return (int(first), int(steps)) if steps else None


@record
class Config:
    """A run: its data, its model, how it is trained, and the search for validation, which decoding uses by default.

    Attributes:
      data: the corpus, its vocabularies and batches.
      model: kind of model and its sizes.
      training: optimiser, schedule, limits, validation, reports.
      search: beam search for validation, and the default for decoding.
      seed: seed of initialisation, batch order, dropout and the sample that vocabularies are learned from.
      mesh: how the devices are arranged (docs/distributed.md).
      parallel: how an update is spread over the mesh. jit leaves it to XLA's partitioner. shard_map has named
        collectives along data, and leaves fsdp and tensor to the partitioner. pmap replicates all parameters and uses
        data only. The results are the same (docs/distributed.md).
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
            "training.finetune_from uses the vocabularies of that run: leave data.vocabulary.dir out",
        )
        if isinstance(self.model, ModelConfig):
            self._check_sides(self.model)
        else:
            check(not self.data.one_sided, "data.src is not set: specify the side of the texts, such as src='en'")
        self._check_best_metric()

    def _check_best_metric(self) -> None:
        """Raise UserError if `best_metric` is a score that validations do not measure."""
        name, asked = self.training.best_metric, self.training.metrics
        check(
            name == LOSS or self.training.validate_bleu,
            f"training.best_metric is '{name}', but training.validate_bleu is False: set it to True, or use '{LOSS}'",
        )
        scores = labels.KEYS if self.classifies else [key for metric in asked for key in METRICS[metric].keys]
        measured = [LOSS, *scores]
        check(
            name in measured,
            f"training.best_metric is '{name}', which validations of this run do not measure"
            f"{did_you_mean(name, measured)}",
        )

    def _check_sides(self, model: ModelConfig) -> None:
        """Raise UserError for a source that nobody reads, or for what a model without source or attention cannot do."""
        reads, src = model.reads_source, self.data.src
        check(
            not self.data.labelled,
            f"data.corpus is '{self.data.corpus}', a labelled corpus for model.kind 'classifier': use that kind, or a "
            "corpus without labels",
        )
        check(
            not reads or not self.data.one_sided,
            "data.src is not set: specify the side to translate from, such as src='de', or set model.encoder.kind to "
            "'none' for a language model of the target side",
        )
        check(src == "" or reads, f"data.src is '{src}', but model.encoder.kind 'none' reads no source: leave it out")
        check(
            reads or not self.training.validate_bleu,
            "training.validate_bleu is True, but a language model does not translate: set it to False",
        )
        vocabulary = self.data.vocabulary
        check(
            not model.share_embeddings or vocabulary.joint or vocabulary.dir != "" or self.training.finetune_from != "",
            "model.share_embeddings is True, but each side has its own vocabulary: set data.vocabulary.joint to True",
        )
        check(
            self.search.lm_weight == 0,
            f"search.lm_weight is {self.search.lm_weight}: it only works with convs2s decode --lm; set it there",
        )
        check(
            model.attends or self.search.coverage_penalty == 0,
            f"search.coverage_penalty is {self.search.coverage_penalty}: it requires a decoder with attention; use 0",
        )

    @property
    def classifies(self) -> bool:
        """Whether the model is a classifier, whose target is one label."""
        return isinstance(self.model, ClassifierConfig)

    @property
    def examples(self) -> str:
        """What messages call training examples: pairs, the texts of a classifier, or the lines of a language model."""
        return "texts" if self.classifies else "lines" if self.data.one_sided else "pairs"

    @property
    def translator(self) -> ModelConfig:
        """The model, if it is one that translates.

        Raises:
          UserError: the model is of another kind.
        """
        if isinstance(self.model, ModelConfig):
            return self.model
        raise UserError(f"model.kind is '{self.model.kind}', which does not translate; use a run of an encoder_decoder")
