"""Kernels of attention over packed sequences, with or without dropout: forward, and two for backward; of dropout of
hidden states, `kept_bits`, which draws what is kept; of GELU, `gelu_backward`; and of what ends half a block,
`add_normalised_backward`.

The method of attention is FlashAttention-2's (Dao, 2023): a block of queries walks over the keys of its own sequence
with a running maximum and sum; backward makes the probabilities again from the saved logarithm of the sum. What is
dropped is a pure function of a seed and of (slot, head, key), so that backward drops the same without anything being
kept.

Imported only where Triton is there. Programs of attention: blocks of the longest sequence x N x S, blocks first.

Legend: T token slots, S sequences, N heads, D head width (a power of two), Q rows of a block of queries, K of a block
of keys, R of either. qkv: [T, 3, N, D]. out: [T, N, D]. lse (in base 2), delta (the product of a row's output and its
gradient): fp32[T, N]. offsets: int32[S + 1].
seed: int64[1]. dropped: how many of 65,536 probabilities are dropped. DROPS: whether any are; otherwise nothing is
drawn, and no seed is read.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

_LOG2_E = tl.constexpr(1.4426950408889634)
# Rounds of Philox: the least that passes the tests of randomness its authors put it to (Salmon et al., 2011).
_ROUNDS = tl.constexpr(7)
# GELU: 2 sqrt(2 / pi) and 0.044715 of the one by tanh; sqrt(1 / 2) and 1 / sqrt(2 pi) of the one by erf.
_TWO_U, _CUBE = tl.constexpr(1.5957691216057308), tl.constexpr(0.044715)
_ROOT_HALF, _DENSITY = tl.constexpr(0.7071067811865476), tl.constexpr(0.3989422804014327)


@triton.jit
def _place(offsets, LONGEST, HEADS: tl.constexpr, R: tl.constexpr):
    """(first row of the program's block, its head, its sequence's first slot and length)."""
    blocks = tl.cdiv(LONGEST, R)
    program = tl.program_id(0)
    sequence = program // (blocks * HEADS)
    start = tl.load(offsets + sequence)
    length = tl.load(offsets + sequence + 1) - start
    return program % blocks * R, program // blocks % HEADS, start, length


@triton.jit
def _rows(base, first, length, ROW: tl.constexpr, D: tl.constexpr, R: tl.constexpr):
    """[R, D]: rows first to first + R of a sequence, ROW numbers apart; zeros behind its end."""
    row = first + tl.arange(0, R)
    at = row.to(tl.int64)[:, None] * ROW + tl.arange(0, D)[None, :]
    return tl.load(base + at, mask=(row < length)[:, None], other=0.0)


@triton.jit
def _store_rows(base, values, first, length, ROW: tl.constexpr, D: tl.constexpr, R: tl.constexpr):
    row = first + tl.arange(0, R)
    at = row.to(tl.int64)[:, None] * ROW + tl.arange(0, D)[None, :]
    tl.store(base + at, values.to(base.dtype.element_ty), mask=(row < length)[:, None])


@triton.jit
def _share(dropped):
    """Of the probabilities that are kept."""
    return 1 - dropped * (1.0 / 65536)


@triton.jit
def _kept(seed, dropped, query, key_first, head, LONGEST, HEADS: tl.constexpr, Q: tl.constexpr, K: tl.constexpr):
    """[Q, K]: whether a probability is kept. query: [Q], slots of the batch. key_first: the first key's place in the
    sequence, a multiple of K.

    One call of Philox gives 128 bits, 16 for each of eight neighbouring keys: its multiplications are what dropout
    costs."""
    EIGHTS: tl.constexpr = K // 8
    eight = key_first // 8 + tl.arange(0, EIGHTS)
    counter = (query * HEADS + head)[:, None] * tl.cdiv(LONGEST, 8) + eight[None, :]
    a, b, c, d = tl.randint4x(seed, counter, _ROUNDS)
    four = tl.join(tl.join(a, b), tl.join(c, d)).to(tl.uint32, bitcast=True)
    kept = tl.join((four & 0xFFFF) >= dropped, (four >> 16) >= dropped)
    return tl.reshape(kept, (Q, K))


@triton.jit
def _two_bits(draw, dropped):
    """Whether each of two neighbours is kept, by 16 bits each: the first in the lowest bit."""
    draw = draw.to(tl.uint32, bitcast=True)
    return ((draw & 0xFFFF) >= dropped).to(tl.uint32) + ((draw >> 16) >= dropped).to(tl.uint32) * 2


@triton.jit
def kept_bits(out, seed, dropped, COUNT, R: tl.constexpr):
    """out: uint8[COUNT], which of each eight neighbours are kept, the first in the lowest bit. Programs: COUNT / R,
    rounded up."""
    at = tl.program_id(0) * R + tl.arange(0, R)
    a, b, c, d = tl.randint4x(tl.load(seed), at, _ROUNDS)
    low = _two_bits(a, dropped) + _two_bits(b, dropped) * 4
    high = _two_bits(c, dropped) + _two_bits(d, dropped) * 4
    tl.store(out + at, (low + high * 16).to(tl.uint8), mask=at < COUNT)


@triton.jit
def forward(
    qkv, out, lse, offsets, seed, dropped, LONGEST,
    HEADS: tl.constexpr, D: tl.constexpr, Q: tl.constexpr, K: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    first, head, start, length = _place(offsets, LONGEST, HEADS, Q)
    if first < length:
        ROW: tl.constexpr = 3 * HEADS * D
        query_base = qkv + start.to(tl.int64) * ROW + head * D
        q = _rows(query_base, first, length, ROW, D, Q)
        row = first + tl.arange(0, Q)
        highest = tl.full([Q], float("-inf"), tl.float32)
        total = tl.zeros([Q], tl.float32)
        sums = tl.zeros([Q, D], tl.float32)
        scale = _LOG2_E / tl.sqrt(D * 1.0)
        for key_first in range(0, length, K):
            k = _rows(query_base + HEADS * D, key_first, length, ROW, D, K)
            v = _rows(query_base + 2 * HEADS * D, key_first, length, ROW, D, K)
            key = key_first + tl.arange(0, K)
            scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
            scores = tl.where((key < length)[None, :], scores, float("-inf"))
            higher = tl.maximum(highest, tl.max(scores, 1))
            probabilities = tl.exp2(scores - higher[:, None])
            shrink = tl.exp2(highest - higher)
            total = total * shrink + tl.sum(probabilities, 1)
            if DROPS:
                kept = _kept(tl.load(seed), dropped, start + row, key_first, head, LONGEST, HEADS, Q, K)
                probabilities = tl.where(kept, probabilities, 0.0)
            sums = sums * shrink[:, None] + tl.dot(probabilities.to(v.dtype), v, input_precision="ieee")
            highest = higher
        result = sums / (total * _share(dropped))[:, None]
        _store_rows(out + (start.to(tl.int64) * HEADS + head) * D, result, first, length, HEADS * D, D, Q)
        tl.store(lse + (start + row) * HEADS + head, highest + tl.log2(total), mask=row < length)


@triton.jit
def _gradients(a, b, c, d, lse, delta, kept, real, dropped, D: tl.constexpr):
    """The probabilities that are kept, without the factor of dropout, and the gradient of the scores, without that of
    the scores. a, b, c, d: queries, keys, gradients of the output and values for [Q, K]; keys, queries, values and
    gradients for [K, Q]. lse, delta, kept: such that they can be broadcast to that; kept is None for all. real:
    likewise, where others count as zero, or None."""
    scores = tl.dot(a, tl.trans(b), input_precision="ieee") * (_LOG2_E / tl.sqrt(D * 1.0))
    # Infinite, at worst, for keys behind the end of a sequence, of which backward_of_keys stores nothing.
    probabilities = tl.exp2(scores - lse)
    if real is not None:
        probabilities = tl.where(real, probabilities, 0.0)
    grad_probabilities = tl.dot(c, tl.trans(d), input_precision="ieee")
    left = probabilities
    if kept is not None:
        grad_probabilities = tl.where(kept, grad_probabilities * (1 / _share(dropped)), 0.0)
        left = tl.where(kept, probabilities, 0.0)
    return left, probabilities * (grad_probabilities - delta)


@triton.jit
def _queries(qkv, grad_out, lse, first, head, start, length, HEADS: tl.constexpr, D: tl.constexpr, Q: tl.constexpr):
    """Rows first to first + Q of a sequence, zeros behind its end: queries, grad_out and lse; and where numbers of
    these rows lie, and whether they are real."""
    ROW: tl.constexpr = 3 * HEADS * D
    q = _rows(qkv + (start.to(tl.int64) * ROW + head * D), first, length, ROW, D, Q)
    by = _rows(grad_out + (start.to(tl.int64) * HEADS + head) * D, first, length, HEADS * D, D, Q)
    row = first + tl.arange(0, Q)
    at = (start + row) * HEADS + head
    return q, by, tl.load(lse + at, mask=row < length, other=0.0), at, row < length


@triton.jit
def _store_keys(
    grad_qkv, grad_k, grad_v, dropped, first, length, HEADS: tl.constexpr, D: tl.constexpr, K: tl.constexpr
):
    """Gradients of a block of keys and values, without the factors of the scores and of dropout. grad_qkv: where those
    of the sequence's queries begin."""
    ROW: tl.constexpr = 3 * HEADS * D
    _store_rows(grad_qkv + HEADS * D, grad_k * (1 / tl.sqrt(D * 1.0)), first, length, ROW, D, K)
    _store_rows(grad_qkv + 2 * HEADS * D, grad_v * (1 / _share(dropped)), first, length, ROW, D, K)


@triton.jit
def backward_of_queries(
    qkv, out, grad_out, lse, delta, grad_qkv, offsets, seed, dropped, LONGEST,
    HEADS: tl.constexpr, D: tl.constexpr, Q: tl.constexpr, K: tl.constexpr, DROPS: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of queries, from all keys of the sequence; and delta. WHOLE: the block has all queries of a
    sequence, so those of keys and values are whole too, and nobody needs delta."""
    first, head, start, length = _place(offsets, LONGEST, HEADS, Q)
    if first < length:
        ROW: tl.constexpr = 3 * HEADS * D
        base = start.to(tl.int64) * ROW + head * D
        q, by, sums, at, is_real = _queries(qkv, grad_out, lse, first, head, start, length, HEADS, D, Q)
        o = _rows(out + (start.to(tl.int64) * HEADS + head) * D, first, length, HEADS * D, D, Q)
        shift = tl.sum(o.to(tl.float32) * by.to(tl.float32), 1)
        if not WHOLE:
            tl.store(delta + at, shift, mask=is_real)
        row = first + tl.arange(0, Q)
        grad_q = tl.zeros([Q, D], tl.float32)
        for key_first in range(0, length, K):
            key = key_first + tl.arange(0, K)
            k = _rows(qkv + base + HEADS * D, key_first, length, ROW, D, K)
            v = _rows(qkv + base + 2 * HEADS * D, key_first, length, ROW, D, K)
            kept = None
            if DROPS:
                kept = _kept(tl.load(seed), dropped, start + row, key_first, head, LONGEST, HEADS, Q, K)
            real = (key < length)[None, :]
            left, grad_scores = _gradients(q, k, by, v, sums[:, None], shift[:, None], kept, real, dropped, D)
            by_scores = grad_scores.to(k.dtype)
            grad_q += tl.dot(by_scores, k, input_precision="ieee")
            if WHOLE:
                grad_v = tl.dot(tl.trans(left.to(by.dtype)), by, input_precision="ieee")
                grad_k = tl.dot(tl.trans(by_scores), q, input_precision="ieee")
                _store_keys(grad_qkv + base, grad_k, grad_v, dropped, key_first, length, HEADS, D, K)
        _store_rows(grad_qkv + base, grad_q * (1 / tl.sqrt(D * 1.0)), first, length, ROW, D, Q)


@triton.jit
def backward_of_keys(
    qkv, grad_out, lse, delta, grad_qkv, offsets, seed, dropped, LONGEST,
    HEADS: tl.constexpr, D: tl.constexpr, Q: tl.constexpr, K: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of keys and values, from all queries of the sequence. Queries behind its end add zeros, as
    their gradient is zero; what is found for keys behind it is not stored."""
    first, head, start, length = _place(offsets, LONGEST, HEADS, K)
    if first < length:
        ROW: tl.constexpr = 3 * HEADS * D
        base = start.to(tl.int64) * ROW + head * D
        k = _rows(qkv + base + HEADS * D, first, length, ROW, D, K)
        v = _rows(qkv + base + 2 * HEADS * D, first, length, ROW, D, K)
        grad_k = tl.zeros([K, D], tl.float32)
        grad_v = tl.zeros([K, D], tl.float32)
        for query_first in range(0, length, Q):
            row = query_first + tl.arange(0, Q)
            q, by, sums, at, is_real = _queries(qkv, grad_out, lse, query_first, head, start, length, HEADS, D, Q)
            shift = tl.load(delta + at, mask=is_real, other=0.0)
            kept = None
            if DROPS:
                kept = tl.trans(_kept(tl.load(seed), dropped, start + row, first, head, LONGEST, HEADS, Q, K))
            left, grad_scores = _gradients(k, q, v, by, sums[None, :], shift[None, :], kept, None, dropped, D)
            grad_v += tl.dot(left.to(by.dtype), by, input_precision="ieee")
            grad_k += tl.dot(grad_scores.to(q.dtype), q, input_precision="ieee")
        _store_keys(grad_qkv + base, grad_k, grad_v, dropped, first, length, HEADS, D, K)


@triton.jit
def gelu_backward(
    grad_out, x, grad_x, sums, WIDTH,
    GROUP: tl.constexpr, R: tl.constexpr, C: tl.constexpr, TANH: tl.constexpr,
):  # fmt: skip
    """grad_x: the gradient of GELU's input x, all [T, WIDTH]. sums: fp32[T / GROUP, WIDTH], of the rows of each group.
    TANH: GELU by tanh, else by erf. Programs: blocks of C columns x groups, blocks first."""
    column = tl.program_id(0) * C + tl.arange(0, C)
    group = tl.program_id(1)
    is_real = (column < WIDTH)[None, :]
    total = tl.zeros([R, C], tl.float32)
    for first in range(0, GROUP, R):
        row = group * GROUP + first + tl.arange(0, R)
        at = row.to(tl.int64)[:, None] * WIDTH + column[None, :]
        by = tl.load(grad_out + at, mask=is_real, other=0.0).to(tl.float32)
        value = tl.load(x + at, mask=is_real, other=0.0).to(tl.float32)
        square = value * value
        if TANH:
            # (1 + tanh(u)) / 2 is the logistic function of 2 u, here of _TWO_U (x + _CUBE x^3).
            share = 1 / (1 + tl.exp(value * (square * _CUBE + 1) * -_TWO_U))
            derivative = share + value * share * (1 - share) * (square * (3 * _CUBE) + 1) * _TWO_U
        else:
            derivative = 0.5 + 0.5 * tl.erf(value * _ROOT_HALF) + value * _DENSITY * tl.exp(-0.5 * square)
        given = (by * derivative).to(grad_x.dtype.element_ty)
        tl.store(grad_x + at, given, mask=is_real)
        total += given.to(tl.float32)
    tl.store(sums + group * WIDTH + column, tl.sum(total, 0), mask=column < WIDTH)


@triton.jit
def add_normalised_backward(
    grad_out, grad_more, normalised, inverses, weight, bits, grad_x, grad_y, sums, scale, WIDTH,
    GROUP: tl.constexpr, C: tl.constexpr, MORE: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """Of LayerNorm of x + dropout(y): grad_x and grad_y, from grad_out and, if MORE, grad_more. normalised: before it
    is multiplied by the weight; all these are [T, WIDTH]. inverses: of deviations, fp32[T]. bits: of `kept_bits`, read
    if DROPS. sums: fp32[T / GROUP, 3, WIDTH], the gradients of LayerNorm's weight and bias, and of a bias in y. C: at
    least WIDTH. Programs: groups of rows."""
    column = tl.arange(0, C)
    is_real = column < WIDTH
    by = tl.load(weight + column, mask=is_real, other=0.0)
    of_weight = tl.zeros([C], tl.float32)
    of_shift = tl.zeros([C], tl.float32)
    of_bias = tl.zeros([C], tl.float32)
    group = tl.program_id(0).to(tl.int64)
    for number in tl.range(0, GROUP, num_stages=2):
        row = group * GROUP + number
        at = row * WIDTH + column
        if DROPS:
            byte = tl.load(bits + row * (WIDTH // 8) + column // 8, mask=is_real, other=0)
        given = tl.load(grad_out + at, mask=is_real, other=0.0).to(tl.float32)
        if MORE:
            given += tl.load(grad_more + at, mask=is_real, other=0.0).to(tl.float32)
        normal = tl.load(normalised + at, mask=is_real, other=0.0)
        scaled = given * by
        back = scaled - tl.sum(scaled) / WIDTH - normal * (tl.sum(scaled * normal) / WIDTH)
        back *= tl.load(inverses + row)
        tl.store(grad_x + at, back, mask=is_real)
        if DROPS:
            back = tl.where(((byte >> (column % 8)) & 1) != 0, back * scale, 0.0)
        added = back.to(grad_y.dtype.element_ty)
        tl.store(grad_y + at, added, mask=is_real)
        of_weight += given * normal
        of_shift += given
        of_bias += added.to(tl.float32)
    into = sums + group * 3 * WIDTH + column
    tl.store(into, of_weight, mask=is_real)
    tl.store(into + WIDTH, of_shift, mask=is_real)
    tl.store(into + 2 * WIDTH, of_bias, mask=is_real)
