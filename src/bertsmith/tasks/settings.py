"""How a task model is trained. The string under a field is its help on the command line."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

from bertsmith.base.errors import BertsmithError, TypeChecked, check_class
from bertsmith.tasks.reading.bad_rows import BAD_SHARE
from bertsmith.tasks.reading.records import Columns
from bertsmith.tasks.sampling import Sampling

# Of the training rows, in percent, that a learning curve is drawn over, beside all of them.
_CURVE_SHARES = (10, 30)
# Settings that not every kind of task reads, and the kinds that do.
_OF_RARE = ("class_weights", "focal", "sampling", "label_smoothing")
_OF_CLASSES = ("positive", "negative_label", "many_labels", "temperature", "thresholds")
_OF_ANSWERS = ("doc_stride", "max_query_length", "n_best", "max_answer_length", "unanswerable", "null_threshold")
_READ_BY: dict[str, tuple[str, ...]] = {
    **dict.fromkeys((*_OF_RARE, *_OF_CLASSES), ("classify",)),
    **dict.fromkeys(_OF_ANSWERS, ("qa",)),
    "labels": ("classify", "tag"),
    "soft_temperature": ("classify", "tag", "qa", "choice"),
    "window_overlap": ("classify", "regress", "tag", "choice", "embed"),
}
_READ_WITH = {
    "augment": ("augment_share", "augment_top", "label_augmented"),
    "label_weight": ("label_augmented", "class_weights", "focal", "label_smoothing"),
    "logits_weight": ("soft_temperature",),
    "hidden_weight": ("layer_map",),
}
"""Of a student, settings that are read only where the one that they stand behind is not 0."""
_OF_TEXTS = ("classify", "regress", "score", "choice", "embed", "masked words")
COLUMNS_READ_BY: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("--columns.question", "--columns.context", "--columns.answers"), ("qa",)),
    **dict.fromkeys(("--columns.tokens", "--columns.tags", "--columns.tag-names", "--columns.spans"), ("tag",)),
    "--columns.choices": ("choice",),
    "--columns.negative": ("embed",),
    "--columns.label-separator": ("classify",),
    "--columns.label": ("classify", "regress", "choice", "embed"),
    "--columns.text": (*_OF_TEXTS, "tag"),
    "--columns.text-b": _OF_TEXTS,
}
"""Columns that not every kind of model reads, and the kinds that do."""


@dataclass(frozen=True)
class FinetuneSettings(TypeChecked):
    """Fine-tuning with AdamW under a linear warm-up and decay."""

    epochs: int = 4
    """Passes over the training rows; the best one by the metric on the dev rows is kept."""
    max_steps: int = 0
    """The most steps of each seed, if its epochs have more; 0 for no limit."""
    evaluate_every: int = 0
    """Also measure on the dev rows every so many steps; 0 measures at the end of each epoch only."""
    patience: int = 0
    """End a seed early after so many measurements in a row without a better one; 0 for never."""
    batch: int = 32
    """Rows of one step."""
    learning_rate: float = 5e-5
    """The highest learning rate, reached at the end of the warm-up."""
    warmup: float = 0.1
    """The share of the steps over which the learning rate rises."""
    weight_decay: float = 0.01
    """Applied to weight matrices and embeddings, not to biases and LayerNorm."""
    layer_decay: float = 1.0
    """Each layer's learning rate is this times that of the layer above it, the embeddings' this times the
    first layer's."""
    frozen_layers: int = 0
    """How many layers from the bottom are frozen, together with the embeddings; 0 for none."""
    reinitialised_layers: int = 0
    """How many layers from the top start from random weights; 0 for none."""
    bias_correction: bool = True
    """Adam's bias correction; Google's BERT had none."""
    max_gradient_norm: float = 1.0
    """The gradient of a step is clipped to this global norm; 0 disables clipping."""
    dropout: float = 0.1
    """On hidden states and the pooled output, whatever the pre-training had."""
    attention_dropout: float = 0.1
    """On attention probabilities; on a CPU a step without it is some 10% faster."""
    max_length: int = 0
    """The most tokens of a row, [CLS] and [SEP] included; longer texts are cut at the side that
    the tokenizer of --model says, else at their end, or read in windows. 0 is
    the task's own: 384 for qa, 128 for all others."""
    windows: bool = False
    """Read longer texts in windows, in training and in prediction, and take the mean of the windows' scores (embed: of
    their vectors)."""
    window_overlap: int = 32
    """Tokens that a window shares with the one before it, at most half of what it holds of the text."""
    doc_stride: int = 128
    """Tokens from the start of a window on a long context to the start of the next one (qa)."""
    max_query_length: int = 64
    """The most tokens of a question; longer ones are cut at their end (qa)."""
    n_best: int = 20
    """How many starts and ends of answers are considered in a window, and how many answers are kept (qa)."""
    max_answer_length: int = 30
    """The most tokens of an answer (qa)."""
    unanswerable: bool | None = None
    """Whether a question may have no answer, as in SQuAD 2.0; unless given, true if any training question has no answer
    (qa)."""
    null_threshold: float | None = None
    """By how much the score of no answer must exceed the best answer's; unless given, tuned on the dev rows (qa)."""
    metric: str = "auto"
    """What selects the best epoch and the best seed, on the dev rows; auto is the task's own (classify: accuracy)."""
    positive: str | None = None
    """The label that binary_f1 scores; unless given, the one of the two labels that sorts last."""
    negative_label: str | None = None
    """The label that micro_f1 leaves out: the one for "nothing here", such as no relation."""
    labels: str | None = None
    """The classes in the order of the model's outputs, joined by commas; without it those of the rows, sorted. Of tag,
    all tags that rows may have, whose places from 0 may stand for them."""
    many_labels: bool = False
    """Treat labels as classes even if there are more than 100, as many as rows, or numbers with fractions."""
    class_weights: Literal["none", "balanced"] = "none"
    """balanced: in the loss each class is weighted by the inverse of its number of training rows (classify)."""
    focal: float = 0.0
    """The gamma of a focal loss, which gives difficult rows more weight; 0 for none, 2 is usual (classify)."""
    sampling: Sampling = "natural"
    """The rows of an epoch: natural takes each once, balanced as many of every class, sqrt in proportion to the square
    root of a class's size (classify)."""
    label_smoothing: float = 0.0
    """The share of each label that is spread over all classes; 0.1 is usual (classify)."""
    temperature: bool = True
    """Divide the scores by a temperature fitted to the dev rows, where that makes the probabilities better."""
    thresholds: Literal["auto", "tuned", "half"] = "auto"
    """The probability from which a label is given: tuned on the dev rows for F1, or half (0.5). auto tunes it for rows
    with several labels where that raises the metric; tuned always does, and for the positive one of two labels too."""
    seeds: int = 1
    """How many times to train, each time from another seed (head, order, dropout); the log gives mean and deviation."""
    keep_seed: Literal["best", "median", "last"] = "best"
    """Which model is kept: that of the best seed; of the median seed (with an even number of seeds, the lower of the
    middle two), of equal ones the first; or of the last seed after its last step, so that the dev rows choose
    nothing."""
    seed: int = 42
    """The first seed."""
    folds: int = 0
    """k-fold cross-validation: also train on all folds but one, in turn, and measure on the one left out; 0 for
    none."""
    learning_curve: bool = False
    """Also train on 10% and on 30% of the training rows: whether more labels would help."""
    side_by_side: bool = False
    """Distribute seeds, folds and shares of a learning curve over the ranks (--gpus, --ranks), each trained by one rank
    alone, instead of all ranks training them together, one after another."""
    from_scratch: bool = False
    """Random weights instead of the model's: shows what the pre-training is worth."""
    micro_batch_tokens: int = 8192
    """Maximum number of tokens in a micro-batch; a step has as many micro-batches as it needs. On a CPU they are
    smaller where one of that size would take many seconds."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = "auto"
    """The dtype of matrix products; parameters and optimizer are fp32."""
    log_every: int = 50
    """Steps between two lines of metrics; the end of an epoch always has one."""
    save_every: int = 500
    """Steps between two checkpoints; the end of an epoch is always saved."""
    keep: int = 1
    """How many of the newest step checkpoints are kept while it trains."""
    keep_every: int = 0
    """Steps of the run between checkpoints that are written and kept whatever `keep` says; 0 keeps no such
    checkpoints."""
    report: bool = True
    """Write reports on the dev and the test rows into the run's `report`: tables and pictures, and for qa SQuAD's
    files of predictions."""
    nvidia_results: bool = False
    """Write nvidia-results.json too: scores, times and latencies under the names that NVIDIA's scripts use."""
    dev_share: float | None = None
    """The share of the training rows that is held out as dev rows if no file of dev rows is given: stratified by label,
    with no --columns.group on both sides; then 0.2 unless given."""
    skip_bad_rows: str | None = None
    """Leave out rows that cannot be used, and write them to this file as JSON lines, each with the reason."""
    bad_share: float = BAD_SHARE
    """The largest share of the rows of a file that --skip-bad-rows may leave out."""
    columns: Columns = field(default_factory=Columns)
    """Which columns hold text and label; they are inferred where the rows have none of these names."""

    def __post_init__(self) -> None:
        super().__post_init__()
        counted = ("epochs", "batch", "seeds", "micro_batch_tokens", "keep")
        for name in (*counted, "doc_stride", "max_query_length", "n_best", "max_answer_length"):
            _demand(getattr(self, name) >= 1, name, getattr(self, name), "a whole number from 1")
        periods = ("log_every", "save_every", "keep_every", "evaluate_every")
        counts = ("window_overlap", "max_steps", "patience", "frozen_layers", "reinitialised_layers")
        for name in (*periods, *counts, "seed"):
            _demand(getattr(self, name) >= 0, name, getattr(self, name), "a whole number from 0")
        # No clipping is a norm without end.
        for name, value in vars(self).items():
            finite = not isinstance(value, float) or math.isfinite(value) or name == "max_gradient_norm"
            _demand(finite, name, value, "a finite number")
        _demand(self.folds == 0 or self.folds >= 2, "folds", self.folds, "0, or a whole number from 2")
        _demand(0 < self.layer_decay <= 1, "layer_decay", self.layer_decay, "a number above 0, at most 1")
        _demand(self.max_length == 0 or self.max_length >= 8, "max_length", self.max_length, "a whole number from 8")
        _demand(self.learning_rate > 0, "learning_rate", self.learning_rate, "a number above 0")
        _demand(0 <= self.warmup <= 1, "warmup", self.warmup, "a share from 0 to 1")
        share = self.dev_share
        _demand(share is None or 0 < share < 1, "dev_share", share or 0, "a share between 0 and 1")
        _demand(0 < self.bad_share <= 1, "bad_share", self.bad_share, "a share above 0, up to 1")
        alone = self.skip_bad_rows is None and self.bad_share != BAD_SHARE
        _demand(not alone, "bad_share", self.bad_share, "it with skip_bad_rows, which leaves rows out")
        for name in ("dropout", "attention_dropout"):
            _demand(0 <= getattr(self, name) < 1, name, getattr(self, name), "a share from 0 to below 1")
        _demand(0 <= self.label_smoothing < 1, "label_smoothing", self.label_smoothing, "a share from 0 to below 1")
        trainings = (self.seeds > 1, self.folds, self.learning_curve)
        _demand(any(trainings) or not self.side_by_side, "side_by_side", True, "it with seeds, folds or learning_curve")
        _demand(not (self.focal and self.label_smoothing), "focal", self.focal, "it without label_smoothing")
        for name in ("weight_decay", "focal"):
            _demand(getattr(self, name) >= 0, name, getattr(self, name), "a number from 0")
        limit = self.max_gradient_norm  # below the optimizer's epsilon gradients vanish beside it
        _demand(limit == 0 or limit >= 1e-6, "max_gradient_norm", limit, "a number from 1e-6, or 0 for no clipping")

    @property
    def overlap(self) -> int | None:
        """Tokens that the windows of a long text share; None where it is cut instead."""
        return self.window_overlap if self.windows else None

    @property
    def curve_shares(self) -> tuple[int, ...]:
        """Of the training rows, in percent, that the run also trains on."""
        return _CURVE_SHARES if self.learning_curve else ()

    def steps(self, epoch_steps: int) -> int:
        """Of one training, if it does not end early. epoch_steps: of a pass over its rows."""
        return min(self.epochs * epoch_steps, self.max_steps or sys.maxsize)

    def check_layers(self, layers: int, has_head: bool) -> None:
        """Raises BertsmithError where layers are frozen or random that a model of so many does not have, where some are
        both, and where nothing is left that learns. has_head: whether anything stands above the layers."""
        for name in ("frozen_layers", "reinitialised_layers"):
            if getattr(self, name) > layers:
                raise BertsmithError(f"{name} is {getattr(self, name)}", "settings", f"the model has {layers} layers")
        if self.frozen_layers + self.reinitialised_layers > layers:
            counts = self.frozen_layers, self.reinitialised_layers
            what = f"frozen_layers is {counts[0]} and reinitialised_layers is {counts[1]}, so that some are both"
            fix = f"the model has {layers} layers; one with random weights has to learn, so use fewer"
            raise BertsmithError(what, "settings", fix)
        if self.frozen_layers == layers and not self.trains_head(has_head):
            what = f"frozen_layers is {layers}, which are all, and nothing above them learns"
            raise BertsmithError(what, "settings", f"use fewer than {layers}")

    def trains_head(self, has_head: bool) -> bool:
        """Whether what stands above the layers, if anything does, has a loss."""
        return has_head

    def check_read_by(self, kind: str, always_in_windows: bool) -> None:
        """Raises BertsmithError for a setting that a kind of task does not read."""
        plain, where = type(self)(), "fine-tuning settings"
        changed = [name for name in _READ_BY if getattr(self, name, None) != getattr(plain, name, None)]
        check_read(kind, changed, _READ_BY, where)
        check_read(kind, changed_columns(self.columns, plain.columns), COLUMNS_READ_BY, where)
        if self.window_overlap != plain.window_overlap and not (self.windows or always_in_windows):
            what = f"window_overlap is {self.window_overlap}, but long texts are cut, not read in windows"
            raise BertsmithError(what, where, "set windows too (--windows), or leave it out")


@dataclass(frozen=True)
class DistillSettings(FinetuneSettings):
    """Fine-tuning of a student that learns from a teacher too: the sum of three losses, each a mean times its weight;
    one of weight 0 is not computed."""

    label_weight: float = 0.5
    """The weight of the loss of the rows' own labels."""
    logits_weight: float = 1.0
    """The weight of how far the student's scores are from the teacher's: the divergence of probabilities, of numbers
    the squared difference."""
    hidden_weight: float = 1.0
    """The weight of the squared difference of hidden states, between the layers of --layer-map."""
    soft_temperature: float = 2.0
    """What both sides' scores are divided by before they are compared as probabilities."""
    layer_map: str = "auto"
    """Which layer of the student learns from which of the teacher, such as 0:0,2:3,4:6, 0 being the embeddings; auto
    takes the embeddings and all layers of the student, evenly spaced over the teacher's."""
    student_layers: int = 0
    """Take so many evenly spaced layers of the student's folder, the last one among them; 0 takes all."""
    augment: int = 0
    """Rows made of each training row, by replacing words with proposals of --augment-model; 0 for none."""
    augment_model: str | None = None
    """The folder of a pre-trained model with a masked-word head, or a run that has one."""
    augment_share: float = 0.3
    """The probability that a word of a row is replaced."""
    augment_top: int = 15
    """A word is replaced by one of so many likeliest proposals."""
    label_augmented: bool = False
    """Augmented rows keep the label of the row that they are made of in the loss of labels. Without it they have the
    teacher's scores alone, since a replaced word may change what the row says."""

    def __post_init__(self) -> None:
        super().__post_init__()
        weights = ("label_weight", "logits_weight", "hidden_weight")
        for name in weights:
            _demand(getattr(self, name) >= 0, name, getattr(self, name), "a number from 0")
        _demand(any(getattr(self, name) for name in weights), weights[0], 0, "a weight above 0, or another one of them")
        _demand(self.soft_temperature > 0, "soft_temperature", self.soft_temperature, "a number above 0")
        for name in ("student_layers", "augment"):
            _demand(getattr(self, name) >= 0, name, getattr(self, name), "a whole number from 0")
        _demand(0 < self.augment_share <= 1, "augment_share", self.augment_share, "a share above 0, up to 1")
        _demand(self.augment_top >= 1, "augment_top", self.augment_top, "a whole number from 1")
        self._check_augmented()

    def trains_head(self, has_head: bool) -> bool:
        return has_head and bool(self.label_weight or self.logits_weight)

    def _check_augmented(self) -> None:
        where = "distillation settings"
        if (self.augment > 0) != (self.augment_model is not None):
            fix = "give both: how many rows are made of each, and the model that proposes words"
            raise BertsmithError("one of augment and augment_model is there without the other", where, fix)
        for other, name in ((other, name) for other, names in _READ_WITH.items() for name in names):
            unread = not getattr(self, other) and getattr(self, name) != getattr(DistillSettings, name)
            _demand(not unread, name, getattr(self, name), f"it with {other}, which is 0")
        if self.augment and (self.folds or self.learning_curve):
            what = "folds and learning curves divide the training rows, and augmented rows would be on both sides"
            raise BertsmithError(what, where, "leave out augment, or --folds and --learning-curve")
        if self.augment and not (self.label_augmented or self.logits_weight or self.hidden_weight):
            what = "nothing would be learned from the augmented rows: they have no label, and the teacher no weight"
            raise BertsmithError(what, where, "set label_augmented, or a weight of the teacher's")


def check_settings(settings: object, has_teacher: bool) -> None:
    """Raises BertsmithError where settings are neither None nor those of a run with a teacher, or without one."""
    check_class(settings, DistillSettings if has_teacher else FinetuneSettings, "settings")
    if isinstance(settings, DistillSettings) and not has_teacher:
        fix = "give a FinetuneSettings, or call distill with a teacher"
        raise BertsmithError("settings is a DistillSettings, and there is no teacher", "settings", fix)


def due_steps(steps: int, periods: Sequence[int]) -> list[int]:
    """The steps of so many, counted from 1, after which something is due: the last one, and one of each period; of 0,
    none."""
    return [step for step in range(1, steps + 1) if step == steps or any(each and not step % each for each in periods)]


def changed_columns(columns: Columns, others: Columns) -> list[str]:
    """The flags of the columns in which the first ones are not the others."""
    names = [each.name for each in fields(Columns)]
    return [f"--columns.{name.replace('_', '-')}" for name in names if getattr(columns, name) != getattr(others, name)]


def check_read(kind: str, given: Iterable[str], read_by: Mapping[str, Sequence[str]], where: str | Path) -> None:
    """Raises BertsmithError for a setting that is given and that a kind of model does not read. read_by: the kinds that
    read a setting, where those are not all."""
    for name in given:
        if kind not in (kinds := read_by.get(name, (kind,))):
            what = f"{kind} models do not take {name.replace('_', ' ')}"
            raise BertsmithError(what, where, f"leave it out; it is for {' and '.join(kinds)} models")


def _demand(holds: bool, name: str, found: object, wanted: str) -> None:
    if not holds:
        raise BertsmithError(f"{name} is {found}", "fine-tuning settings", f"use {wanted}")
