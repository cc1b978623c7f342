"""One model folder, loaded once, that answers rows of text: classes, or pieces for [MASK]."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bertsmith.base import files
from bertsmith.base.device import choose_device
from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import say
from bertsmith.inference.classes import ClassModel
from bertsmith.inference.masks import MaskModel
from bertsmith.tasks import classification
from bertsmith.tasks.records import Columns, Row, to_record
from bertsmith.tasks.sequences import encode, load_tokenizer
from bertsmith.weights.huggingface import CONFIG_FILE, TASK_FILE, read_config

Prediction = dict[str, Any]

_LEAST_LENGTH = 4  # [CLS], [SEP] and [SEP] leave one piece of a pair
_MASK_ARCHITECTURES = ("BertForPreTraining", "BertForMaskedLM")


class Predictor:
    """Answers rows of text with the model of a folder.

    A fine-tuned classifier gives {"label", "score", "scores"} for each row; a pre-trained folder gives {"guesses"}: for
    each [MASK] of the row the `top` likeliest pieces, as {"piece", "probability"}. columns: where the texts stand in a
    row, as in the rows that the model was fine-tuned on unless given. At most `budget_tokens` go through the model at
    once. Raises BertsmithError for a folder that predicts nothing.
    """

    def __init__(
        self,
        folder: str | Path,
        device: str = "auto",
        *,
        precision: str = "auto",
        columns: Columns | None = None,
        top: int = 5,
        budget_tokens: int = 8192,
    ) -> None:
        folder = Path(folder)
        shape = read_config(folder)
        trained_columns, trained_length = _read_task(folder / TASK_FILE)
        self.columns = columns or trained_columns
        self.max_length = min(trained_length or shape.max_position_embeddings, shape.max_position_embeddings)
        self._budget_tokens = budget_tokens
        self._tokenizer = load_tokenizer(folder, shape)
        architecture = _architecture(folder / CONFIG_FILE)
        if architecture not in (classification.ARCHITECTURE, *_MASK_ARCHITECTURES):
            raise BertsmithError(
                f"this folder holds {architecture}, which predicts nothing by itself", folder, "fine-tune it first"
            )
        chosen = choose_device(device, precision)
        self._model: ClassModel | MaskModel
        if architecture == classification.ARCHITECTURE:
            self._model = ClassModel(folder, chosen)
        else:
            self._model = MaskModel(folder, chosen, self._tokenizer, top)

    def __call__(self, rows: Sequence[Row | str]) -> list[Prediction]:
        """The predictions of the rows, in their order. A row is a text, or a mapping with the texts' columns.

        Rows of like lengths go through the model together, without padding. Raises BertsmithError that names a row
        without text, or without a [MASK] where one is needed.
        """
        return self.predict((f"row {number}", row) for number, row in enumerate(rows, start=1))

    def predict(self, rows: Iterable[tuple[str, Row | str]]) -> list[Prediction]:
        """The same for rows that come with their names for messages ("file:line")."""
        records = []
        for where, row in rows:
            try:
                records.append(to_record(row, self.columns, False, where))
            except ValueError as error:
                raise BertsmithError(str(error), where, "mend or remove this row") from error
        sequences = encode(records, self._tokenizer, self.max_length, self._model.literal_specials)
        if sequences.truncated_rows:
            say(f"{sequences.truncation()} (the model reads {self.max_length})")
        return self._model.predict(records, sequences, self._budget_tokens)

    def cells(self, prediction: Prediction) -> dict[str, str]:
        """A prediction as named cells of a table."""
        return self._model.cells(prediction)


def _read_task(path: Path) -> tuple[Columns, int | None]:
    """Where the texts stand in a row, and the most tokens of a row, by the task.json of a fine-tuned folder.

    A folder without one gives the usual columns and None. Raises BertsmithError where the file holds something else.
    """
    if not path.is_file():
        return Columns(), None
    fix = "fine-tune again, or copy the file again from where the model came from"
    task = files.read_json(path, fix)
    if not isinstance(task, dict):
        raise BertsmithError("this file does not describe a task: it holds no JSON object", path, fix)
    length = task.get("max_length")
    if length is not None and (type(length) is not int or length < _LEAST_LENGTH):
        wanted = f"a whole number from {_LEAST_LENGTH}"
        raise BertsmithError(f"this file does not describe a task: max_length is {length!r}, not {wanted}", path, fix)
    try:
        return Columns.from_json(task.get("columns", {})), length
    except ValueError as error:
        raise BertsmithError(f"this file does not describe a task: {error}", path, fix) from error


def _architecture(path: Path) -> str:
    """The class of transformers that a config.json names first."""
    named = files.read_json(path).get("architectures")
    return str(named[0]) if isinstance(named, list) and named else "no architecture"
