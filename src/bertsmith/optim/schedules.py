"""Learning-rate schedules as pure functions of the update's number k = 1, 2, ..., steps. No update has a rate of zero.

A warm-up of `warmup_share` of the steps rises linearly from base / warm-up to base, at its last update. NVIDIA's and
Google's schedules reach zero at the last update, which then changes nothing; here the decay uses the progress *before*
the update, (k - 1) / steps, so the last one still changes the weights.
"""

from __future__ import annotations


def polynomial(update: int, steps: int, warmup_share: float, power: float, base: float) -> float:
    """NVIDIA's schedule: a warm-up, then base (1 - progress) ** power with progress counted from the run's start.

    So the rate drops at the end of the warm-up, from base to base (1 - warmup_share) ** power, as in NVIDIA's code.
    power 0.5 is NVIDIA's, 1 is Google's.
    """
    warmup = _warmup_updates(steps, warmup_share)
    if update <= warmup:
        return base * update / warmup
    return float(base * (1 - (update - 1) / steps) ** power)


def linear(update: int, steps: int, warmup_share: float, base: float) -> float:
    """A warm-up, then a straight line from base down to base / (steps after the warm-up): for fine-tuning."""
    warmup = _warmup_updates(steps, warmup_share)
    if update <= warmup:
        return base * update / warmup
    return base * min(1.0, (steps - update + 1) / (steps - warmup))


def constant(update: int, steps: int, warmup_share: float, base: float) -> float:
    """A warm-up, then base."""
    warmup = _warmup_updates(steps, warmup_share)
    return base * update / warmup if update <= warmup else base


def _warmup_updates(steps: int, share: float) -> float:
    return round(share * steps, 6)  # 0.29 * 100 is a little under 29
