"""Learning-rate schedules as pure functions of the update's number k = 1, 2, ..., steps. No update has a rate of zero.

A warm-up of `warmup_share` of the steps rises linearly from base / warm-up to base, at its last update. NVIDIA's and
Google's schedules reach zero at the last update, which then changes nothing; here the decay uses the progress *before*
the update, (k - 1) / steps, so the last one still changes the weights.
"""

from __future__ import annotations

import math


def polynomial(update: float, steps: int, warmup_share: float, power: float, base: float) -> float:
    """NVIDIA's schedule: a warm-up, then base (1 - progress) ** power with progress counted from the run's start.

    So the rate drops at the end of the warm-up, from base to base (1 - warmup_share) ** power, as in NVIDIA's code.
    power 0.5 is NVIDIA's, 1 is Google's.
    """
    warmup = _updates(steps, warmup_share)
    if update <= warmup:
        return base * update / warmup
    return float(base * (1 - (update - 1) / steps) ** power)


def linear(update: float, steps: int, warmup_share: float, base: float) -> float:
    """A warm-up, then a straight line from base down to base / (steps after the warm-up): for fine-tuning."""
    warmup = _updates(steps, warmup_share)
    if update <= warmup:
        return base * update / warmup
    return base * min(1.0, (steps - update + 1) / (steps - warmup))


def cosine(update: float, steps: int, warmup_share: float, base: float) -> float:
    """A warm-up, then half a cosine wave from base towards a tenth of it (Hoffmann et al., 2022): towards 0 the last
    updates would change nothing."""
    warmup = _updates(steps, warmup_share)
    if update <= warmup:
        return base * update / warmup
    progress = max(0.0, (update - 1 - warmup) / (steps - warmup))
    return base * (0.55 + 0.45 * math.cos(math.pi * progress))


def warmup_stable_decay(update: float, steps: int, warmup_share: float, decay_share: float, base: float) -> float:
    """A warm-up, then base, and over the last `decay_share` of the steps base (1 - sqrt(progress of the decay)), which
    Hägele et al. (2024) found better than a straight line."""
    warmup, decay = _updates(steps, warmup_share), _updates(steps, decay_share)
    if update <= warmup:
        return base * update / warmup
    decayed = update - 1 - (steps - decay)
    return base * (1 - math.sqrt(decayed / decay)) if decayed > 0 else base


def constant(update: float, steps: int, warmup_share: float, base: float) -> float:
    """A warm-up, then base."""
    warmup = _updates(steps, warmup_share)
    return base * update / warmup if update <= warmup else base


def _updates(steps: int, share: float) -> float:
    return round(share * steps, 6)  # 0.29 * 100 is a little under 29
