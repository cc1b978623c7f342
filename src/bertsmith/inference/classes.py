"""Classes for rows of text, from a fine-tuned classifier."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from bertsmith.base import files
from bertsmith.base.device import Device
from bertsmith.base.errors import BertsmithError
from bertsmith.tasks.classification import Classifier, class_scores, names_of_config
from bertsmith.tasks.records import Record
from bertsmith.tasks.sequences import Sequences
from bertsmith.weights.huggingface import CONFIG_FILE, load_model


class ClassModel:
    """A classifier and the names of its classes."""

    literal_specials = False

    def __init__(self, folder: Path, device: Device) -> None:
        config = files.read_json(folder / CONFIG_FILE)
        kind = config.get("problem_type") or "single_label_classification"
        self.names = names_of_config(config)
        if kind != "single_label_classification" or len(self.names) < 2:
            raise BertsmithError(
                f"problem_type is {kind} with {len(self.names)} label(s)",
                folder / CONFIG_FILE,
                "use a classifier of one label a row, out of two or more",
            )
        self._device = device.torch_device
        model = load_model(lambda shape: Classifier(shape, len(self.names), device.compute), folder)
        self._model = model.to(self._device)

    def predict(self, records: list[Record], sequences: Sequences, budget_tokens: int) -> list[dict[str, Any]]:
        """{"label", "score", "scores"} for each row: the likeliest class, its probability, and every class's."""
        logits = class_scores(self._model, sequences, self._device, budget_tokens).astype(np.float64)
        shares = np.exp(logits - logits.max(1, keepdims=True))
        shares /= shares.sum(1, keepdims=True)
        return [
            {
                "label": self.names[row.argmax()],
                "score": float(row.max()),
                "scores": {name: float(share) for name, share in zip(self.names, row, strict=True)},
            }
            for row in shares
        ]

    def cells(self, prediction: dict[str, Any]) -> dict[str, str]:
        """A prediction as cells of a table."""
        return {"predicted_label": prediction["label"], "predicted_score": f"{prediction['score']:.6f}"}
