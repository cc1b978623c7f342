"""The plan of a pre-training run, before anything starts: from a recipe and a prepared corpus, in seconds."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bertsmith.base.errors import BertsmithError
from bertsmith.base.files import StrPath
from bertsmith.base.log import log_choice, say
from bertsmith.batches.masking import MaskingSettings
from bertsmith.batches.shapes import tiles
from bertsmith.corpus.shards import Corpus
from bertsmith.model.config import BertConfig
from bertsmith.recipes.loader import recipe_of
from bertsmith.recipes.schema import Phase, Recipe
from bertsmith.tokens.special_ids import token_dtype
from bertsmith.training.planning.cost import Exchange, is_half
from bertsmith.training.planning.memory import HALF, WHOLE, Held
from bertsmith.training.planning.model_size import Size, parameters
from bertsmith.training.planning.on_gpus import gpu_costs
from bertsmith.training.planning.plan import Asked, Costs, Plan, make_plan
from bertsmith.training.planning.where import Where
from bertsmith.training.planning.work import Lengths, Work, epoch_lengths, even_cut, fixed_cut
from bertsmith.training.shape import check_positions, config_of, masking_of, order_of, refuse_auto_of_shards, shaped_as

if TYPE_CHECKING:
    from bertsmith.training.this_cpu import Here

# Of a micro-batch, where the recipe leaves it to the device: on a CPU, and as a first try on a GPU.
_USUAL_TOKENS = 8192
# Instances that a rank holds in memory, and bytes of each beside the pages of its tokens (`batches/epochs.py`).
_HELD_INSTANCES, _INSTANCE_BYTES = 400_000, 57


def plan_pretraining(
    recipe: Recipe | str | Path, corpus: Corpus | str | Path, where: Where, init_from: StrPath | None = None
) -> Plan:
    """What the run will need. Writes nothing.

    recipe: a Recipe, a preset's name or a YAML file. corpus: prepared by `bertsmith.prepare`. init_from: a model folder
    or a run that it starts from, and whose shape it has. Raises BertsmithError for input that does not fit together.
    """
    recipe = recipe_of(recipe)
    corpus = corpus if isinstance(corpus, Corpus) else Corpus.open(corpus)
    recipe = recipe if init_from is None else _of_model(recipe, corpus, init_from)
    refuse_auto_of_shards(recipe, where.gpus)
    if recipe.compile == "true" and _is_sharded(recipe, where):
        fix = "--compile auto, or --parallel replicate"
        raise BertsmithError("steps with shards of the weights cannot be compiled", "compile", fix)
    if recipe.hours:
        say(f"the run ends after {recipe.hours:g} hours: the plan has as many steps as fit into them on one host")
    here = None
    if where.on_cpu:  # before the corpus's pages count as memory
        from bertsmith.training.this_cpu import Here  # imports PyTorch

        here = Here.of(recipe.precision)
    orders = {name: order_of(recipe, int(name[-1]), corpus, corpus.folder / "order") for name in _phases(recipe)}
    lengths = {name: epoch_lengths(order.epochs) for name, order in orders.items()}
    plan = partial(_plan, recipe, corpus, where, here, lengths)
    if recipe.micro_batch_tokens != "auto":
        return plan(recipe.micro_batch_tokens)
    least = tiles(recipe.longest)  # as compiled micro-batches are cut
    usual = plan(max(_USUAL_TOKENS, least))
    return usual if where.on_cpu else plan(max(usual.fitting, least))


def _is_sharded(recipe: Recipe, where: Where) -> bool:
    return recipe.parallel == "shard" and where.gpus > 1


def _of_model(recipe: Recipe, corpus: Corpus, folder: StrPath) -> Recipe:
    """The recipe with the shape of a model folder, which is logged. Raises BertsmithError for a model that the run
    could not start from."""
    from bertsmith.training.pretraining.start import added_rows  # import PyTorch
    from bertsmith.weights.huggingface import model_folder, read_config

    start = model_folder(folder, "init_from")
    config = read_config(start)
    added_rows(config, corpus, start)
    log_choice("model", f"{config.num_hidden_layers} layers of {config.hidden_size}", f"those of {folder}")
    check_positions(recipe.longest, config.max_position_embeddings)
    return shaped_as(recipe, config)


def _plan(
    recipe: Recipe, corpus: Corpus, where: Where, here: Here | None, lengths: dict[str, Lengths], asked_tokens: int
) -> Plan:
    """here: this machine, where it is the one that is planned for. asked_tokens: of a micro-batch, at most."""
    config = config_of(recipe.model, corpus.special.vocabulary_size, corpus.special.pad)
    longest = [phase.sequence_length for phase in _phases(recipe).values()]
    if here is None:
        precision, most = where.precision(recipe.precision), asked_tokens
        costs = gpu_costs(where, precision, config, recipe.optimizer.name, longest)
    else:
        precision = here.device.precision
        most = here.micro_batch_tokens(asked_tokens, config, max(longest), where.gpus)
        costs = _cpu_costs(here, recipe, config, lengths, where.gpus)
    sharded = _is_sharded(recipe, where)
    compiled = here is None and recipe.compile != "false" and not sharded
    held = Held(
        config,
        parameters(config, pairs=recipe.objective != "mlm"),
        half=is_half(precision),
        on_cpu=where.on_cpu,
        data=_data_bytes(corpus, lengths) if where.on_cpu else 0.0,
        sharded=sharded,
        checkpointing=recipe.gradient_checkpointing,
        half_sums=recipe.gradient_sums == "bf16",
        lamb=recipe.optimizer.name == "lamb",
        compiled=compiled,
    )
    asked = Asked(
        title="pre-training",
        facts=_facts(config, held.size, corpus, lengths),
        precision=precision,
        works=[_work(recipe, corpus, name, lengths[name]) for name in lengths],
        cut=fixed_cut(most, lengths, _masking(recipe)) if compiled else even_cut(most),
        most_tokens=most,
        ranks=where.gpus,
        price=where.price,
        exchange=_exchange(held, hides=here is None),
        held=held,
    )
    plan = make_plan(asked, costs)
    return plan if not recipe.hours else make_plan(replace(asked, works=_timed(recipe, plan)), costs)


def _timed(recipe: Recipe, plan: Plan) -> list[Work]:
    """The phases with the steps that there is time for, evaluations included: each has its share of the hours by the
    tokens that its own steps would have, as in a run."""
    tokens = [phase.tokens for phase in recipe.phases.values()]
    found = []
    for stage, of_phase in zip(plan.one.stages, tokens, strict=True):
        times = _evaluations(recipe, stage.work.name, stage.work.steps)
        seconds = stage.seconds.total + stage.evaluation / times / recipe.evaluate_every
        steps = max(1, int(3600 * recipe.hours * of_phase / sum(tokens) / seconds))
        evaluated = stage.work.evaluated / times * _evaluations(recipe, stage.work.name, steps)
        found.append(replace(stage.work, steps=steps, evaluated=evaluated))
    return found


def _cpu_costs(here: Here, recipe: Recipe, config: BertConfig, lengths: dict[str, Lengths], ranks: int) -> Costs:
    """Measured now, which a run in another thread would disturb, and be disturbed by."""
    from bertsmith.training.planning.on_cpu import Measuring, measure
    from bertsmith.training.run import only_training
    from bertsmith.training.work import optimizer_of

    if recipe.compile == "true":
        log_choice("plan", "steps as they come", "compiled steps on a CPU are not planned for")
    measuring = Measuring(
        config,
        here.device,
        lengths,
        _masking(recipe),
        recipe.optimizer.name,
        lambda model: optimizer_of(recipe, model, here.device),
    )
    with only_training():
        return measure(measuring, ranks, here.base)


def _phases(recipe: Recipe) -> dict[str, Phase]:
    """Those that have steps, by name."""
    return {f"phase {number}": phase for number, phase in recipe.phases.items()}


def _masking(recipe: Recipe) -> MaskingSettings:
    """That of the step that hides the most, as room is made for it."""
    return masking_of(recipe, 1).densest()


def _work(recipe: Recipe, corpus: Corpus, name: str, lengths: Lengths) -> Work:
    phase = _phases(recipe)[name]
    held_out = lengths.instances * corpus.tokens("held_out") / corpus.tokens("train")
    return Work(
        name=name,
        length=phase.sequence_length,
        steps=phase.steps,
        batch=phase.global_batch,
        sequence=lengths.sequence(_masking(recipe)),
        instances=lengths.instances,
        evaluated=_evaluations(recipe, name, phase.steps) * min(recipe.evaluate_instances, held_out),
    )


def _evaluations(recipe: Recipe, name: str, steps: int) -> int:
    """After so many steps, before the first one, at the end of a phase, and of the finished model."""
    return -(-steps // recipe.evaluate_every) + 1 + (name == min(_phases(recipe)))


def _facts(config: BertConfig, size: Size, corpus: Corpus, lengths: dict[str, Lengths]) -> list[str]:
    sampled = [f"{name} {each.sampled}" for name, each in lengths.items() if each.sampled]
    return [
        f"model: {size.total:,} parameters, {config.num_hidden_layers} layers of {config.hidden_size}, "
        f"{config.vocab_size:,} pieces",
        f"corpus: {corpus.tokens('train'):,} tokens of {corpus.documents('train'):,} documents",
        *([f"lengths of sequences: {'; '.join(sampled)}"] if sampled else []),
    ]


def _exchange(held: Held, hides: bool) -> Exchange:
    """What ranks sum and gather (docs/what-is-reduced.md)."""
    number, size = HALF if held.half_sums else WHOLE, held.size
    whole = number * size.total
    if not held.sharded:
        return Exchange(whole, number * size.words, hides)
    # A gradient goes to one rank alone, half of a sum; what is outside of layers is gathered once a step.
    outside = WHOLE * (size.embeddings + size.heads)
    return Exchange((whole + outside) / 2, outside / 2, hides, 2 * held.narrow * size.layers)


def _data_bytes(corpus: Corpus, lengths: dict[str, Lengths]) -> float:
    """Of instances in memory, and of the corpus's pages that they are read from."""
    found, itemsize = [], token_dtype(corpus.special.vocabulary_size).itemsize
    for each in lengths.values():
        count = min(each.instances, _HELD_INSTANCES)
        found.append(count * (_INSTANCE_BYTES + itemsize * float(each.values.mean())))
    return max(found)
