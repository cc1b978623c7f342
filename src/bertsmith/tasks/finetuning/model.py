"""The model of a fine-tuning run and its optimizer, made anew for each seed."""

from __future__ import annotations

import re
from dataclasses import replace

from torch import nn

from bertsmith.base.device import Device
from bertsmith.base.streams import stream_key
from bertsmith.model.config import BertConfig
from bertsmith.model.distillation.layers import keep_layers
from bertsmith.model.encoder import encoder_of
from bertsmith.model.initial import initialise
from bertsmith.optim.adamw import AdamW
from bertsmith.optim.clipped import ClippedOptimizer
from bertsmith.optim.groups import parameter_groups
from bertsmith.optim.loss_scale import LossScale
from bertsmith.tasks.finetuning.teacher import add_maps
from bertsmith.tasks.finetuning.work import Work
from bertsmith.tasks.settings import FinetuneSettings
from bertsmith.weights.huggingface import load_model
from bertsmith.weights.names import POOLER


def build_model(work: Work, device: Device, seed: int) -> nn.Module:
    """The folder's encoder, or the layers of it that are taken, or random weights of its shape, with a fresh head; of a
    student also the maps to its teacher's width."""
    hidden, attention = work.settings.dropout, work.settings.attention_dropout

    def build(config: BertConfig) -> nn.Module:
        config = replace(config, hidden_dropout_prob=hidden, attention_probs_dropout_prob=attention)
        return work.task.build(config, device.compute)

    if work.starts_random:
        model, fresh = build(work.config), True
        initialise(model, work.config.initializer_range, stream_key(seed, "from scratch"))
    else:
        heads = (work.task.head,) if work.task.head else ()
        fresh = work.distilled is None or not work.distilled.as_teacher
        out = heads if fresh else ()
        model = load_model(build, work.folder, may_be_fresh=(POOLER, *heads), leave_out=out, seed=seed)
    work.task.start(model, fresh)
    keep_layers(model, work.layers)
    _set_layers(model, work.settings, seed)
    add_maps(model, work, seed)
    return model.to(device.torch_device)


def _set_layers(model: nn.Module, settings: FinetuneSettings, seed: int) -> None:
    """Freezes the lowest layers, and gives the highest ones random weights."""
    encoder = encoder_of(model)
    layers = encoder.config.num_hidden_layers
    for place in range(layers - settings.reinitialised_layers, layers):
        deviation = encoder.config.initializer_range
        initialise(encoder.layers[place], deviation, stream_key(seed, "reinitialised layer", place))
    for name, parameter in model.named_parameters():
        if settings.frozen_layers and _height(name, layers) <= settings.frozen_layers:
            parameter.requires_grad_(False)


def _height(name: str, layers: int) -> int:
    """Where a parameter stands: 0 in the embeddings, 1 and so on in the layers, above them for all else."""
    found = re.match(r"encoder\.(?:(?P<embeddings>embeddings)|layers\.(?P<layer>\d+))\.", name)
    if found is None:
        return layers + 1
    return 0 if found["embeddings"] else int(found["layer"]) + 1


def optimizer_of(model: nn.Module, settings: FinetuneSettings, layers: int, device: Device) -> ClippedOptimizer:
    """AdamW with the learning rates of the settings."""
    return AdamW(
        parameter_groups(
            model, settings.weight_decay, lambda name: settings.layer_decay ** (layers + 1 - _height(name, layers))
        ),
        max_gradient_norm=settings.max_gradient_norm,
        bias_correction=settings.bias_correction,
        loss_scale=LossScale(device.torch_device) if device.scales_losses else None,
    )
