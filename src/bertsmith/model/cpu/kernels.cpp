// What stands between the matrix products of a training step on a CPU, each in one visit to memory.
//
// library.py compiles this file on the user's machine, where there is a compiler, and kernels.py says what each function
// takes. `Number` is bf16 or fp32, the numbers of matrix products. Everything is computed in fp32 and rounded once. The
// same bits come out by any number of threads.
//
// Legend: R rows, C columns, L slots of a padded sequence.

#include "dropout.h"
#include "numbers.h"
#include "threads.h"

// As many columns as fill whole vectors, because what is left of one is worked off number by number.
static int64_t whole_vectors(int64_t columns) { return (columns + 31) / 32 * 32; }

// The highest number of a row, NaN left out. In lanes, because compilers differ in whether they make vectors of a maximum.
template <typename Number> static inline float highest_of(const Number *row, int64_t columns) {
    const int64_t lanes = 32, whole = columns / lanes * lanes;
    float highest[lanes];
    std::fill(highest, highest + lanes, -INFINITY);
    for (int64_t c = 0; c < whole; c += lanes)
#pragma omp simd
        for (int64_t l = 0; l < lanes; l++) highest[l] = wide(row[c + l]) > highest[l] ? wide(row[c + l]) : highest[l];
    for (int64_t c = whole; c < columns; c++) highest[0] = std::max(highest[0], wide(row[c]));
    return *std::max_element(highest, highest + lanes);
}

struct Exponentials {
    float highest, total;
};

// Puts e^(score - the highest) of a row of scores into `out`; they add up to `total`.
template <typename Number>
static inline Exponentials exponentials(const Number *scores, int64_t columns, float *out) {
    const float highest = highest_of(scores, columns);
    float total = 0;
#pragma omp simd reduction(+ : total)
    for (int64_t c = 0; c < columns; c++) {
        out[c] = exponential(wide(scores[c]) - highest);
        total += out[c];
    }
    return {highest, total};
}

// sum = x + factors * (y + bias); out = (sum - mean) * spread * weight + shift, and the same as Number in out_narrow,
// unless null. factors: 0 where a place is dropped, with the probability threshold / 2^16, else `scale`. moments: mean and
// 1 / deviation of each row.
template <typename Number>
static void add_normalise(const float *x, const Number *y, const float *bias, const float *weight, const float *shift,
                          float *sum, float *out, Number *out_narrow, float *moments, int64_t rows, int64_t columns,
                          float epsilon, uint64_t key, uint32_t threshold, float scale) {
    over_rows(rows, [=](int64_t begin, int64_t end) {
        Dropout dropout(columns, key, threshold, scale);
        for (int64_t r = begin; r < end; r++) {
            const float *xr = x + r * columns;
            const Number *yr = y + r * columns;
            float *s = sum + r * columns, *o = out + r * columns;
            float total = 0, squares = 0;
            if (threshold) {
                const float *factors = dropout.factors(r);
#pragma omp simd reduction(+ : total)
                for (int64_t c = 0; c < columns; c++) {
                    s[c] = xr[c] + (wide(yr[c]) + bias[c]) * factors[c];
                    total += s[c];
                }
            } else {
#pragma omp simd reduction(+ : total)
                for (int64_t c = 0; c < columns; c++) {
                    s[c] = xr[c] + (wide(yr[c]) + bias[c]);
                    total += s[c];
                }
            }
            const float mean = total / columns;
#pragma omp simd reduction(+ : squares)
            for (int64_t c = 0; c < columns; c++) squares += (s[c] - mean) * (s[c] - mean);
            const float spread = 1.0f / std::sqrt(squares / columns + epsilon);
            moments[2 * r] = mean, moments[2 * r + 1] = spread;
#pragma omp simd
            for (int64_t c = 0; c < columns; c++) o[c] = (s[c] - mean) * spread * weight[c] + shift[c];
            if (!out_narrow) continue;
            Number *n = out_narrow + r * columns;
#pragma omp simd
            for (int64_t c = 0; c < columns; c++) n[c] = narrow<Number>(o[c]);
        }
    });
}

// From grad_out and grad_narrow, either of which may be null, to grad_x and grad_y; the gradients of bias, weight and shift
// are grad_vectors, [3, columns].
template <typename Number>
static void add_normalise_backward(const float *grad_out, const Number *grad_narrow, const float *sum,
                                   const float *moments, const float *weight, float *grad_x, Number *grad_y,
                                   float *grad_vectors, int64_t rows, int64_t columns, uint64_t key, uint32_t threshold,
                                   float scale) {
    SumsOfBlocks<float> all(rows, 3 * columns);
    over_rows(rows, [=, &all](int64_t begin, int64_t end) {
        Dropout dropout(columns, key, threshold, scale);
        std::vector<float> given(columns);
        float *g = given.data();
        for (int64_t r = begin; r < end; r++) {
            const float *s = sum + r * columns, *wides = grad_out + r * columns;
            const Number *narrows = grad_narrow + r * columns;
            float *gx = grad_x + r * columns;
            Number *gy = grad_y + r * columns;
            float *biases = all.of(r), *weights = biases + columns, *shifts = weights + columns;
            const float mean = moments[2 * r], spread = moments[2 * r + 1];
            float first = 0, second = 0;
            if (grad_out && grad_narrow) {
#pragma omp simd
                for (int64_t c = 0; c < columns; c++) g[c] = wides[c] + wide(narrows[c]);
            } else if (grad_out) {
                std::memcpy(g, wides, columns * sizeof(float));
            } else {
#pragma omp simd
                for (int64_t c = 0; c < columns; c++) g[c] = wide(narrows[c]);
            }
#pragma omp simd reduction(+ : first, second)
            for (int64_t c = 0; c < columns; c++) {
                const float normal = (s[c] - mean) * spread, grad_normal = g[c] * weight[c];
                weights[c] += g[c] * normal;
                shifts[c] += g[c];
                first += grad_normal;
                second += grad_normal * normal;
            }
            first /= columns, second /= columns;
#pragma omp simd
            for (int64_t c = 0; c < columns; c++)
                gx[c] = spread * (g[c] * weight[c] - first - (s[c] - mean) * spread * second);
            if (threshold) {
                const float *factors = dropout.factors(r);
#pragma omp simd
                for (int64_t c = 0; c < columns; c++) {
                    const float value = gx[c] * factors[c];
                    biases[c] += value;
                    gy[c] = narrow<Number>(value);
                }
            } else {
#pragma omp simd
                for (int64_t c = 0; c < columns; c++) {
                    biases[c] += gx[c];
                    gy[c] = narrow<Number>(gx[c]);
                }
            }
        }
    });
    all.add_up(grad_vectors);
}

// out = factors * x, as in `add_normalise`.
template <typename Number>
static void drop(const Number *x, Number *out, int64_t rows, int64_t columns, uint64_t key, uint32_t threshold,
                 float scale) {
    over_rows(rows, [=](int64_t begin, int64_t end) {
        Dropout dropout(columns, key, threshold, scale);
        for (int64_t r = begin; r < end; r++) {
            const Number *xr = x + r * columns;
            Number *o = out + r * columns;
            const float *factors = dropout.factors(r);
#pragma omp simd
            for (int64_t c = 0; c < columns; c++) o[c] = narrow<Number>(wide(xr[c]) * factors[c]);
        }
    });
}

// Rows of scores [sequences, heads, L, L], of which the first lengths[sequence] columns are real, become probabilities, in
// place. Those that are dropped become negative, so that no mask has to be kept for the backward pass; `dropped`, unless
// null, gets 0 there.
template <typename Number>
static void softmax(Number *scores, Number *dropped, const int64_t *lengths, int64_t sequences, int64_t heads,
                    int64_t longest, uint64_t key, uint32_t threshold) {
    const int64_t columns = whole_vectors(longest);
    over_rows(sequences * heads * longest, [=](int64_t begin, int64_t end) {
        Dropout dropout(longest, key, threshold, 1.0f, columns);
        std::vector<float> all_powers(columns);
        std::vector<Number> all_rounded(columns), all_kept(columns);
        float *powers = all_powers.data();
        Number *rounded = all_rounded.data(), *kept = all_kept.data();
        for (int64_t r = begin; r < end; r++) {
            const int64_t length = lengths[r / (heads * longest)];
            Number *row = scores + r * longest;
            std::memcpy(rounded, row, length * sizeof(Number));
            std::fill(rounded + length, rounded + columns, narrow<Number>(-INFINITY));
            const float share = 1.0f / exponentials(rounded, columns, powers).total;
#pragma omp simd
            for (int64_t c = 0; c < columns; c++) rounded[c] = magnitude(narrow<Number>(powers[c] * share));  // NaN too
            std::fill(rounded + length, rounded + columns, Number(0));
            if (dropped) {
                const float *factors = dropout.factors(r);
#pragma omp simd
                for (int64_t c = 0; c < columns; c++) {
                    const bool is_dropped = factors[c] == 0.0f;
                    kept[c] = is_dropped ? Number(0) : rounded[c];
                    rounded[c] = negative_if(is_dropped, rounded[c]);
                }
                std::memcpy(dropped + r * longest, kept, longest * sizeof(Number));
            }
            std::memcpy(row, rounded, longest * sizeof(Number));
        }
    });
}

// The gradient of what `softmax` gave as `dropped` becomes that of the scores, in place. probabilities: of `softmax`.
// dropped, unless null, gets the same as there.
template <typename Number>
static void softmax_backward(Number *gradient, const Number *probabilities, Number *dropped, int64_t rows,
                             int64_t longest) {
    over_rows(rows, [=](int64_t begin, int64_t end) {
        std::vector<float> given(longest);
        float *g = given.data();
        for (int64_t r = begin; r < end; r++) {
            Number *grad = gradient + r * longest;
            const Number *row = probabilities + r * longest;
            float shared = 0;
#pragma omp simd reduction(+ : shared)
            for (int64_t c = 0; c < longest; c++) {
                g[c] = is_negative(row[c]) ? 0.0f : wide(grad[c]);
                shared += g[c] * wide(row[c]);
            }
#pragma omp simd
            for (int64_t c = 0; c < longest; c++)
                grad[c] = narrow<Number>((g[c] - shared) * wide(magnitude(row[c])));
            if (!dropped) continue;
            Number *kept = dropped + r * longest;
#pragma omp simd
            for (int64_t c = 0; c < longest; c++) kept[c] = is_negative(row[c]) ? Number(0) : row[c];
        }
    });
}

// Through an activation: gradient to grad_x, and to grad_bias, what the columns of grad_x add up to.
template <typename Activation, typename Number>
static void activation_backward(const Number *gradient, const Number *x, Number *grad_x, float *grad_bias, int64_t rows,
                                int64_t columns) {
    SumsOfBlocks<float> all(rows, columns);
    over_rows(rows, [=, &all](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; r++) {
            const Number *grad = gradient + r * columns, *xr = x + r * columns;
            Number *out = grad_x + r * columns;
            float *sums = all.of(r);
#pragma omp simd
            for (int64_t c = 0; c < columns; c++) {
                const float value = wide(grad[c]) * Activation::derivative(wide(xr[c]));
                sums[c] += value;
                out[c] = narrow<Number>(value);
            }
        }
    });
    all.add_up(grad_bias);
}

// Cross entropy of each row of scores against its label, negative for a row that does not count: its sum, and how many
// labels have the highest score (the first of those that share it). gradient, unless null, gets the gradient of the sum.
template <typename Number>
static void cross_entropy(const Number *scores, const int64_t *labels, Number *gradient, double *loss, int64_t *right,
                          int64_t rows, int64_t columns) {
    SumsOfBlocks<double> losses(rows, 1);
    SumsOfBlocks<int64_t> rights(rows, 1);
    over_rows(rows, [=, &losses, &rights](int64_t begin, int64_t end) {
        std::vector<float> all_powers(columns);
        float *powers = all_powers.data();
        for (int64_t r = begin; r < end; r++) {
            const Number *row = scores + r * columns;
            Number *grad = gradient + r * columns;
            if (labels[r] < 0) {
                if (gradient) std::fill(grad, grad + columns, Number(0));
                continue;
            }
            const auto [highest, total] = exponentials(row, columns, powers);
            const float score = wide(row[labels[r]]);
            *losses.of(r) += std::log(double(total)) - (score - highest);
            const auto is_as_high = [=](Number x) { return wide(x) == score; };
            *rights.of(r) += score == highest && std::none_of(row, row + labels[r], is_as_high);
            if (!gradient) continue;
            const float share = 1.0f / total;
#pragma omp simd
            for (int64_t c = 0; c < columns; c++) grad[c] = narrow<Number>(powers[c] * share);
            grad[labels[r]] = narrow<Number>(powers[labels[r]] * share - 1.0f);
        }
    });
    losses.add_up(loss);
    rights.add_up(right);
}

template <typename Number> constexpr auto gelu_backward = activation_backward<Gelu, Number>;
template <typename Number> constexpr auto gelu_tanh_backward = activation_backward<GeluTanh, Number>;
template <typename Number> constexpr auto relu_backward = activation_backward<Relu, Number>;

// Pointers to a kernel under names that C has, one for each kind of numbers.
#define EXPORT(kernel)                                                                                                 \
    auto kernel##_bf16 = kernel<bf16>;                                                                                 \
    auto kernel##_fp32 = kernel<float>

extern "C" {
EXPORT(add_normalise);
EXPORT(add_normalise_backward);
EXPORT(drop);
EXPORT(softmax);
EXPORT(softmax_backward);
EXPORT(gelu_backward);
EXPORT(gelu_tanh_backward);
EXPORT(relu_backward);
EXPORT(cross_entropy);
}
