"""The peer of a fine-tuning bench, run as `python -m bertsmith.bench.finetune.peer SPEC`: transformers' Trainer with
its dynamic padding, some steps a turn.

The Trainer trains in a thread of its own, whose callback waits after every turn until the next one is due.
"""

from __future__ import annotations

import importlib
import inspect
import queue
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from bertsmith.bench.child import Answer, serve
from bertsmith.bench.finetune.rows import EPOCHS, Prepared, read_features
from bertsmith.bench.step.matrix_rate import seconds_of
from bertsmith.training.records.meters import memory_bytes

_GOLDEN = (5**0.5 - 1) / 2


def spread(order: Sequence[int], batch: int) -> list[int]:
    """The same batches, so that some in a row are a fair sample of all: a grouped order has the longest rows first.

    Full batches stand in the order of the fractions of their numbers times the golden ratio; one that is not full stays
    the last."""
    whole = len(order) // batch
    places = sorted(range(whole), key=lambda number: number * _GOLDEN % 1)
    spread_out = [row for place in places for row in order[place * batch : (place + 1) * batch]]
    return [*spread_out, *order[whole * batch :]]


def padding_share(lengths: Sequence[int], order: Sequence[int], batch: int) -> float:
    """The share of the slots of an epoch that hold no token."""
    slots = 0
    for start in range(0, len(order), batch):
        members = [lengths[row] for row in order[start : start + batch]]
        slots += len(members) * max(members)
    return 1 - sum(lengths) / slots


class Peer:
    """A Trainer that takes steps when asked; each public method answers a question."""

    def __init__(self, spec: Answer) -> None:
        """spec: of `Side.start`. ModuleNotFoundError where transformers or accelerate is not installed."""
        importlib.import_module("accelerate")  # which the Trainer needs, and says by an error of another kind
        import transformers

        prepared = Prepared.of_json(spec["task"])
        self._task, self._outputs, self._grouped = prepared.task, prepared.outputs, bool(spec["grouped"])
        self._features = read_features(prepared.features)
        self._device = torch.device(spec["device"])
        self._asked: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self.trainer = self._trainer(transformers, spec)
        self._thread = threading.Thread(target=self._train, daemon=True)
        self._thread.start()

    def _trainer(self, transformers: Any, spec: Answer) -> Any:
        settings = self._task.settings
        transformers.set_seed(settings.seed)
        asked = inspect.signature(transformers.TrainingArguments).parameters
        group: dict[str, Any] = {"train_sampling_strategy": "group_by_length"}
        if "train_sampling_strategy" not in asked:  # before transformers 5
            group = {"group_by_length": True}
        arguments = transformers.TrainingArguments(
            output_dir=str(Path(spec["folder"]) / "run"),
            per_device_train_batch_size=settings.batch,
            num_train_epochs=EPOCHS,
            learning_rate=settings.learning_rate,
            weight_decay=settings.weight_decay,
            max_grad_norm=settings.max_gradient_norm,
            seed=settings.seed,
            bf16=spec["precision"] == "bf16",
            use_cpu=self._device.type == "cpu",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            **(group if self._grouped else {}),
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(spec["model"])
        return _trainer_class(transformers, self._grouped)(
            model=self._model(transformers, spec["model"]),
            args=arguments,
            train_dataset=self._features,
            data_collator=transformers.DataCollatorWithPadding(tokenizer),
            processing_class=tokenizer,
            callbacks=[_turns(transformers, self._asked, self._done)],
        )

    def _model(self, transformers: Any, folder: str) -> Any:
        settings = self._task.settings
        dropout = {
            "hidden_dropout_prob": settings.dropout,
            "attention_probs_dropout_prob": settings.attention_dropout,
        }
        if self._task.kind == "qa":
            return transformers.AutoModelForQuestionAnswering.from_pretrained(folder, **dropout)
        auto = transformers.AutoModelForSequenceClassification
        return auto.from_pretrained(folder, num_labels=self._outputs, **dropout)

    def _train(self) -> None:
        try:
            self.trainer.train()
        except BaseException as error:
            self._done.put(error)
        else:
            self._done.put(RuntimeError("the Trainer came to its end"))

    def ready(self) -> Answer:
        """The share of padding in an epoch of its batches."""
        lengths = [len(each["input_ids"]) for each in self._features]
        order = list(self.trainer._get_train_sampler())
        return {"padding_share": padding_share(lengths, order, self._task.settings.batch)}

    def turn(self, steps: int) -> Answer:
        """The next steps of the Trainer, with all that it does beside them; it waits for the device at both ends."""
        return {"seconds": seconds_of(self._device, lambda: self._take(steps))}

    def _take(self, steps: int) -> None:
        self._asked.put(steps)
        error = self._done.get()
        if error is not None:
            raise error

    def memory(self) -> Answer:
        """The most memory held so far."""
        return {"bytes": memory_bytes(self._device)}


def _trainer_class(transformers: Any, grouped: bool) -> Any:
    class InOrder(transformers.Trainer):  # type: ignore[misc]
        """Ungrouped batches are those of ours, whose random order the features have; grouped ones are spread."""

        def _get_train_sampler(self, *arguments: Any) -> Any:
            if not grouped:
                return torch.utils.data.SequentialSampler(self.train_dataset)
            # An order, not a sampler that draws another one whenever it is gone through.
            torch.manual_seed(self.args.seed)
            return spread(list(super()._get_train_sampler(*arguments)), self.args.train_batch_size)

    return InOrder


def _turns(transformers: Any, asked: queue.SimpleQueue[int], done: queue.SimpleQueue[BaseException | None]) -> Any:
    class Turns(transformers.TrainerCallback):  # type: ignore[misc]
        """Lets the Trainer take as many steps as `asked` says, and puts None into `done` after them."""

        left = 0

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.left = asked.get()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.left -= 1
            if not self.left:
                done.put(None)
                self.left = asked.get()

    return Turns()


if __name__ == "__main__":
    serve(Peer)
