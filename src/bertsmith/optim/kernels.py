"""An optimizer's update over all tensors of a group, in Triton kernels: sums of squares, moments, and the step.

A tensor is cut into chunks, a program takes one of them, so a launch serves as many tensors as there are. Where they
lie is read from a table of addresses. Sums are taken in an order that depends on nothing but the tensors' sizes, so a
resumed run repeats them to the bit.

Imported only where there is Triton.

Legend: n tensors, C chunks of all of them, W elements worked on at once. addresses: int64[lists, n], of fp32 tensors.
sizes: int64[n], elements. owners: int32[C], whose chunk that is. firsts: int32[n + 1], each tensor's first chunk.
ALIGNED: whether all addresses are multiples of 16 bytes.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _tensor(addresses, place, begin, ALIGNED: tl.constexpr):
    """A tensor from its element `begin` on. place: in the table."""
    base = tl.load(addresses + place).to(tl.pointer_type(tl.float32))
    if ALIGNED:
        base = tl.multiple_of(base, 16)
    return base + begin


@triton.jit
def _chunk(sizes, owners, firsts, CHUNK: tl.constexpr):
    """(the program's tensor, the first element of its chunk, how many elements the chunk has)."""
    tensor = tl.load(owners + tl.program_id(0))
    begin = (tl.program_id(0) - tl.load(firsts + tensor)).to(tl.int64) * CHUNK
    return tensor, begin, tl.minimum(tl.load(sizes + tensor) - begin, CHUNK).to(tl.int32)


@triton.jit
def _load(values, at, size, FULL: tl.constexpr):
    """FULL: without a mask. With one the compiler reads 4 bytes at a time, not 16: it does not know where it ends."""
    if FULL:
        return tl.load(values + at)
    return tl.load(values + at, mask=at < size, other=0.0)


@triton.jit
def _store(values, at, value, size, FULL: tl.constexpr):
    if FULL:
        tl.store(values + at, value)
    else:
        tl.store(values + at, value, mask=at < size)


@triton.jit
def squares(addresses, sizes, owners, firsts, sums, CHUNK: tl.constexpr, W: tl.constexpr, ALIGNED: tl.constexpr):
    """sums, fp64[C]: of the squares of each chunk."""
    tensor, begin, size = _chunk(sizes, owners, firsts, CHUNK)
    values = _tensor(addresses, tensor, begin, ALIGNED)
    if size == CHUNK:
        _squares(values, size, sums, W, True)
    else:
        _squares(values, size, sums, W, False)


@triton.jit
def _squares(values, size, sums, W: tl.constexpr, FULL: tl.constexpr):
    total = tl.zeros([W], tl.float32)
    for first in range(0, size, W):
        value = _load(values, first + tl.arange(0, W), size, FULL)
        total += value * value
    tl.store(sums + tl.program_id(0), tl.sum(total.to(tl.float64), 0))


@triton.jit
def totals(sums, firsts, out, C, TENSORS, W: tl.constexpr):
    """out, fp64[rows, n]: for each tensor what its chunks sum to. sums: fp64[rows, C]. A program for each tensor and
    row."""
    tensor, row = tl.program_id(0), tl.program_id(1)
    end = tl.load(firsts + tensor + 1)
    total = tl.zeros([W], tl.float64)
    for first in range(tl.load(firsts + tensor), end, W):
        at = first + tl.arange(0, W)
        total += tl.load(sums + row * C + at, mask=at < end, other=0.0)
    tl.store(out + row * TENSORS + tensor, tl.sum(total, 0))


@triton.jit
def _direction(mean, square, weight, first, second, epsilon, decay):
    """Adam's, with weight decay. first, second: what the mean and the root of the mean square are divided by."""
    root = tl.div_rn(tl.sqrt_rn(square), second)
    return tl.div_rn(tl.div_rn(mean, first), root + epsilon) + decay * weight


@triton.jit
def moments(
    addresses,
    sizes,
    owners,
    firsts,
    divisor,
    finite,
    rate,
    corrections,
    sums,
    C,
    TENSORS,
    rest1,
    rest2,
    epsilon,
    decay,
    SCALED: tl.constexpr,
    CHUNK: tl.constexpr,
    W: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """Updates means and mean squares from the gradients over divisor; nothing where finite is 0. The table has the
    weights, gradients, means and mean squares. rest1, rest2: 1 - beta. corrections: fp32[2].

    SCALED: sums, fp64[2, C], becomes the squares of the weights and of the direction, which `scaled` takes;
    else the weights are moved against the direction at once."""
    tensor, begin, size = _chunk(sizes, owners, firsts, CHUNK)
    size = tl.where(tl.load(finite) > 0, size, 0)
    weights = _tensor(addresses, tensor, begin, ALIGNED)
    gradients = _tensor(addresses, TENSORS + tensor, begin, ALIGNED)
    means = _tensor(addresses, 2 * TENSORS + tensor, begin, ALIGNED)
    mean_squares = _tensor(addresses, 3 * TENSORS + tensor, begin, ALIGNED)
    first, second = tl.load(corrections), tl.load(corrections + 1)
    numbers = (tl.load(divisor), tl.load(rate), first, second, rest1, rest2, epsilon, decay)
    if size == CHUNK:
        _moments(weights, gradients, means, mean_squares, size, numbers, sums, C, SCALED, W, True)
    else:
        _moments(weights, gradients, means, mean_squares, size, numbers, sums, C, SCALED, W, False)


@triton.jit
def _moments(
    weights,
    gradients,
    means,
    mean_squares,
    size,
    numbers,
    sums,
    C,
    SCALED: tl.constexpr,
    W: tl.constexpr,
    FULL: tl.constexpr,
):
    divisor, rate, first, second, rest1, rest2, epsilon, decay = numbers
    weight_total = tl.zeros([W], tl.float32)
    move_total = tl.zeros([W], tl.float32)
    for begin in range(0, size, W):
        at = begin + tl.arange(0, W)
        weight = _load(weights, at, size, FULL)
        gradient = tl.div_rn(_load(gradients, at, size, FULL), divisor)
        mean = _load(means, at, size, FULL)
        square = _load(mean_squares, at, size, FULL)
        mean += rest1 * (gradient - mean)
        square += rest2 * (gradient * gradient - square)
        _store(means, at, mean, size, FULL)
        _store(mean_squares, at, square, size, FULL)
        move = _direction(mean, square, weight, first, second, epsilon, decay)
        if SCALED:  # behind the end all is 0, the direction too
            weight_total += weight * weight
            move_total += move * move
        else:
            _store(weights, at, weight - rate * move, size, FULL)
    if SCALED:
        tl.store(sums + tl.program_id(0), tl.sum(weight_total.to(tl.float64), 0))
        tl.store(sums + C + tl.program_id(0), tl.sum(move_total.to(tl.float64), 0))


@triton.jit
def scaled(
    addresses,
    sizes,
    owners,
    firsts,
    finite,
    rate,
    corrections,
    norms,
    TENSORS,
    epsilon,
    decay,
    CHUNK: tl.constexpr,
    W: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """Moves the weights against the direction, which is made again from the moments, by the rate times the trust ratio;
    nothing where finite is 0. norms: fp32[2, n], of the weights and of the direction."""
    tensor, begin, size = _chunk(sizes, owners, firsts, CHUNK)
    size = tl.where(tl.load(finite) > 0, size, 0)
    weights = _tensor(addresses, tensor, begin, ALIGNED)
    means = _tensor(addresses, 2 * TENSORS + tensor, begin, ALIGNED)
    mean_squares = _tensor(addresses, 3 * TENSORS + tensor, begin, ALIGNED)
    weight_norm, move_norm = tl.load(norms + tensor), tl.load(norms + TENSORS + tensor)
    both = (weight_norm > 0) & (move_norm > 0)
    speed = tl.load(rate) * tl.where(both, weight_norm / tl.where(both, move_norm, 1.0), 1.0)
    numbers = (speed, tl.load(corrections), tl.load(corrections + 1), epsilon, decay)
    if size == CHUNK:
        _scaled(weights, means, mean_squares, size, numbers, W, True)
    else:
        _scaled(weights, means, mean_squares, size, numbers, W, False)


@triton.jit
def _scaled(weights, means, mean_squares, size, numbers, W: tl.constexpr, FULL: tl.constexpr):
    speed, first, second, epsilon, decay = numbers
    for begin in range(0, size, W):
        at = begin + tl.arange(0, W)
        weight = _load(weights, at, size, FULL)
        mean, square = _load(means, at, size, FULL), _load(mean_squares, at, size, FULL)
        move = _direction(mean, square, weight, first, second, epsilon, decay)
        _store(weights, at, weight - speed * move, size, FULL)
