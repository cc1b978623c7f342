"""How many tokens of a micro-batch fit a GPU that has little memory left, and that training then fits."""

from __future__ import annotations

import torch

from bertsmith.bench.step.made_batches import lengths_of, pretrain_batch
from bertsmith.optim.adamw import AdamW
from bertsmith.optim.groups import parameter_groups
from bertsmith.training.pretraining.fitting import _SPARE, fitting_tokens
from bertsmith.training.pretraining.objective import Pretraining
from bertsmith.training.step import train_step
from made_pretraining import fresh_model

LONGEST, MOST, LEFT = 128, 1 << 20, 2 << 30
SHAPE = {"hidden_size": 256, "num_hidden_layers": 4, "intermediate_size": 1024}


def test_fewer_tokens_fit_where_memory_is_short_and_a_step_of_them_fits(cuda: torch.device) -> None:
    model = fresh_model(torch.bfloat16, vocab_size=1000, **SHAPE).to(cuda)
    objective = Pretraining(model, cuda)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(cuda)
    held = torch.empty(free - int(_SPARE * total) - LEFT, dtype=torch.uint8, device=cuda)
    try:
        found = fitting_tokens(objective, LONGEST, 0.15, MOST)
        assert LONGEST <= found < MOST
        optimizer = AdamW(parameter_groups(model, 0.01))
        optimizer.set_learning_rate(1e-4)
        batch = pretrain_batch(lengths_of("full", found // LONGEST, LONGEST), 1000)
        counts = {"masked": len(batch.masked_positions), "next_sentence": batch.layout.sequences}
        for _ in range(2):
            train_step(objective, optimizer, [batch], counts, cuda)
        assert all(bool(each.isfinite().all()) for each in model.parameters())
    finally:
        del held
        torch.cuda.empty_cache()
