// What stands between the matrix products of a training step in bf16 on a CPU, each in one visit to memory.
//
// cpu_kernels.py compiles this file on the user's machine, where there is a compiler, and says what each function is
// given. Everything is computed in fp32 and rounded to bf16 once, to the nearest even. Rows are dealt to threads in equal
// runs, and whatever is summed over rows is summed per thread and then in the order of threads, so that the same number
// of threads gives the same bits.
//
// Legend: R rows, C columns, L slots of a padded sequence.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <omp.h>
#include <vector>

typedef uint16_t bf16;

static inline float wide(bf16 x) {
    uint32_t bits = uint32_t(x) << 16;
    float out;
    std::memcpy(&out, &bits, 4);
    return out;
}

static inline bf16 narrow(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return (bits & 0x7fffffff) > 0x7f800000 ? bf16((bits >> 16) | 0x40) : bf16(rounded);  // NaN stays NaN
}

// e^x to 2e-7 for x in [-70, 88], 0 below and the value at this end above; NaN for NaN (Cephes' expf). Below -70 it would
// be so small that its products may be too small for normal numbers, for which a processor takes ten times as long.
static inline float exponential(float x) {
    float inside = x < -70.0f ? -70.0f : x;
    inside = inside > 88.0f ? 88.0f : inside;
    float whole = std::floor(inside * 1.44269504f + 0.5f);
    float rest = inside - whole * 0.693359375f + whole * 2.12194440e-4f;
    float sum = 1.9875691500e-4f;
    sum = sum * rest + 1.3981999507e-3f;
    sum = sum * rest + 8.3334519073e-3f;
    sum = sum * rest + 4.1665795894e-2f;
    sum = sum * rest + 1.6666665459e-1f;
    sum = sum * rest + 5.0000001201e-1f;
    sum = sum * rest * rest + rest + 1.0f;
    int32_t bits = (int32_t(whole) + 127) << 23;
    float power;
    std::memcpy(&power, &bits, 4);
    return x < -70.0f ? 0.0f : sum * power;
}

// Which places of a row are kept: 16 bits of SplitMix64 (Steele, Lea and Flood, 2014) for each, by key, row and column.
class Dropout {
  public:
    // room: columns that are asked for, at least as many as there are.
    Dropout(int64_t columns, uint64_t key, uint32_t threshold, float scale, int64_t room = 0)
        : words_((columns + 3) / 4), key_(key), threshold_(threshold), scale_(scale),
          bits_(std::max(4 * words_, room)), factors_(std::max(columns, room)) {}

    // 0 where a place is dropped, which has the probability threshold / 2^16, else the scale.
    const float *factors(int64_t row) {
        const uint64_t step = 0x9e3779b97f4a7c15u, first = key_ + uint64_t(row) * uint64_t(words_) * step;
        uint16_t *bits = bits_.data();
        float *factors = factors_.data();
        for (int64_t i = 0; i < words_; i++) {
            uint64_t z = first + uint64_t(i + 1) * step;
            z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
            z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
            z ^= z >> 31;
            std::memcpy(bits + 4 * i, &z, 8);
        }
        const float kept = scale_;
        const uint32_t threshold = threshold_;
        const int64_t columns = int64_t(factors_.size());
#pragma omp simd
        for (int64_t c = 0; c < columns; c++) factors[c] = bits[c] >= threshold ? kept : 0.0f;
        return factors;
    }

  private:
    int64_t words_;
    uint64_t key_;
    uint32_t threshold_;
    float scale_;
    std::vector<uint16_t> bits_;
    std::vector<float> factors_;
};

// Runs `work(first row, row behind the last, thread)` in every thread.
template <typename Work> static void over_rows(int64_t rows, Work work) {
#pragma omp parallel
    {
        int64_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
        work(rows * thread / threads, rows * (thread + 1) / threads, thread);
    }
}

// As many columns as fill whole vectors, because what is left of one is worked off number by number.
static int64_t whole_vectors(int64_t columns) { return (columns + 31) / 32 * 32; }

struct Raised {
    float highest, total;
};

// Puts e^(score - the highest) of a row of scores into odds, which add up to `total`.
static inline Raised raised(const bf16 *scores, int64_t columns, float *odds) {
    float highest = -INFINITY, total = 0;
#pragma omp simd reduction(max : highest)
    for (int64_t c = 0; c < columns; c++) highest = wide(scores[c]) > highest ? wide(scores[c]) : highest;
#pragma omp simd reduction(+ : total)
    for (int64_t c = 0; c < columns; c++) {
        odds[c] = exponential(wide(scores[c]) - highest);
        total += odds[c];
    }
    return {highest, total};
}

// `columns` sums, each thread its own, which are added up in the order of threads.
class SumsOfThreads {
  public:
    explicit SumsOfThreads(int64_t columns) : columns_(columns), sums_(omp_get_max_threads() * columns) {}

    float *of(int64_t thread) { return sums_.data() + thread * columns_; }

    void add_up(float *total) const {
        for (int64_t c = 0; c < columns_; c++) {
            float sum = 0;
            for (size_t at = c; at < sums_.size(); at += columns_) sum += sums_[at];
            total[c] = sum;
        }
    }

  private:
    int64_t columns_;
    std::vector<float> sums_;
};

typedef bf16 Eight __attribute__((vector_size(16)));

// Eight rows of eight, `from` apart, written as columns, `to` apart. Each round of dealing halves like cards turns a third
// of the way (Stone, 1971).
static inline void turn_square(const bf16 *x, int64_t from, bf16 *out, int64_t to) {
    const Eight low = {0, 8, 1, 9, 2, 10, 3, 11}, high = {4, 12, 5, 13, 6, 14, 7, 15};
    Eight rows[8], dealt[8];
    for (int i = 0; i < 8; i++) std::memcpy(&rows[i], x + i * from, 16);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 4; i++) {
            dealt[2 * i] = __builtin_shuffle(rows[i], rows[i + 4], low);
            dealt[2 * i + 1] = __builtin_shuffle(rows[i], rows[i + 4], high);
        }
        for (int i = 0; i < 8; i++) rows[i] = dealt[i];
    }
    for (int i = 0; i < 8; i++) std::memcpy(out + i * to, &rows[i], 16);
}

extern "C" {

// sum = x + factors * (y + bias); out = (sum - mean) * spread * weight + shift, and the same in bf16. factors: 0 where a
// place is dropped, with the probability threshold / 2^16, else `scale`. moments: mean and 1 / deviation of each row.
void add_normalise(const float *x, const bf16 *y, const float *bias, const float *weight, const float *shift, float *sum,
                   float *out, bf16 *out_narrow, float *moments, int64_t rows, int64_t columns, float epsilon,
                   uint64_t key, uint32_t threshold, float scale) {
    over_rows(rows, [=](int64_t begin, int64_t end, int64_t) {
        Dropout dropout(columns, key, threshold, scale);
        for (int64_t r = begin; r < end; r++) {
            const float *xr = x + r * columns;
            const bf16 *yr = y + r * columns;
            float *s = sum + r * columns, *o = out + r * columns;
            bf16 *n = out_narrow + r * columns;
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
            float mean = total / columns;
#pragma omp simd reduction(+ : squares)
            for (int64_t c = 0; c < columns; c++) squares += (s[c] - mean) * (s[c] - mean);
            float spread = 1.0f / std::sqrt(squares / columns + epsilon);
            moments[2 * r] = mean, moments[2 * r + 1] = spread;
#pragma omp simd
            for (int64_t c = 0; c < columns; c++) {
                float value = (s[c] - mean) * spread * weight[c] + shift[c];
                o[c] = value;
                n[c] = narrow(value);
            }
        }
    });
}

// The way back: by_out and by_narrow, either of which may be null, to by_x and by_y; by_bias, by_weight and by_shift
// are by_vectors, [3, columns].
void add_normalise_back(const float *by_out, const bf16 *by_narrow, const float *sum, const float *moments,
                        const float *weight, float *by_x, bf16 *by_y, float *by_vectors, int64_t rows, int64_t columns,
                        uint64_t key, uint32_t threshold, float scale) {
    SumsOfThreads all(3 * columns);
    over_rows(rows, [=, &all](int64_t begin, int64_t end, int64_t thread) {
        Dropout dropout(columns, key, threshold, scale);
        std::vector<float> given(columns);
        float *g = given.data(), *biases = all.of(thread), *weights = biases + columns, *shifts = weights + columns;
        for (int64_t r = begin; r < end; r++) {
            const float *s = sum + r * columns;
            float *bx = by_x + r * columns;
            bf16 *by = by_y + r * columns;
            float mean = moments[2 * r], spread = moments[2 * r + 1], first = 0, second = 0;
            if (by_out && by_narrow) {
#pragma omp simd
                for (int64_t c = 0; c < columns; c++) g[c] = by_out[r * columns + c] + wide(by_narrow[r * columns + c]);
            } else if (by_out) {
                std::memcpy(g, by_out + r * columns, columns * sizeof(float));
            } else {
#pragma omp simd
                for (int64_t c = 0; c < columns; c++) g[c] = wide(by_narrow[r * columns + c]);
            }
#pragma omp simd reduction(+ : first, second)
            for (int64_t c = 0; c < columns; c++) {
                float normal = (s[c] - mean) * spread, by_normal = g[c] * weight[c];
                weights[c] += g[c] * normal;
                shifts[c] += g[c];
                first += by_normal;
                second += by_normal * normal;
            }
            first /= columns, second /= columns;
#pragma omp simd
            for (int64_t c = 0; c < columns; c++)
                bx[c] = spread * (g[c] * weight[c] - first - (s[c] - mean) * spread * second);
            if (threshold) {
                const float *factors = dropout.factors(r);
#pragma omp simd
                for (int64_t c = 0; c < columns; c++) {
                    float by_y = bx[c] * factors[c];
                    biases[c] += by_y;
                    by[c] = narrow(by_y);
                }
            } else {
#pragma omp simd
                for (int64_t c = 0; c < columns; c++) {
                    biases[c] += bx[c];
                    by[c] = narrow(bx[c]);
                }
            }
        }
    });
    all.add_up(by_vectors);
}

// Rows of scores [sequences, heads, L, L], of which the first lengths[sequence] columns are real, become odds, in place.
// What is dropped has its sign turned, so that the way back needs no mask; `dropped`, unless null, gets 0 there.
void softmax(bf16 *scores, bf16 *dropped, const int64_t *lengths, int64_t sequences, int64_t heads, int64_t longest,
             uint64_t key, uint32_t threshold) {
    const int64_t columns = whole_vectors(longest);
    over_rows(sequences * heads * longest, [=](int64_t begin, int64_t end, int64_t) {
        Dropout dropout(longest, key, threshold, 1.0f, columns);
        std::vector<float> all_odds(columns);
        std::vector<bf16> all_rounded(columns), all_kept(columns);
        float *odds = all_odds.data();
        bf16 *rounded = all_rounded.data(), *kept = all_kept.data();
        for (int64_t r = begin; r < end; r++) {
            const int64_t length = lengths[r / (heads * longest)];
            bf16 *row = scores + r * longest;
            std::memcpy(rounded, row, length * sizeof(bf16));
            std::fill(rounded + length, rounded + columns, bf16(0xff80));  // minus infinity
            const float share = 1.0f / raised(rounded, columns, odds).total;
#pragma omp simd
            for (int64_t c = 0; c < columns; c++) rounded[c] = bf16(narrow(odds[c] * share) & 0x7fff);  // NaN too
            std::fill(rounded + length, rounded + columns, bf16(0));
            if (dropped) {
                const float *factors = dropout.factors(r);
#pragma omp simd
                for (int64_t c = 0; c < columns; c++) {
                    bool is_kept = factors[c] != 0.0f;
                    kept[c] = is_kept ? rounded[c] : bf16(0);
                    rounded[c] = bf16(rounded[c] | (is_kept ? 0 : 0x8000));
                }
                std::memcpy(dropped + r * longest, kept, longest * sizeof(bf16));
            }
            std::memcpy(row, rounded, longest * sizeof(bf16));
        }
    });
}

// The way back through dropout and softmax: by_odds, what `dropped` got, becomes by_scores in place. odds: of `softmax`.
// dropped, unless null, gets the odds with 0 for those that were dropped, as there.
void softmax_back(bf16 *by_odds, const bf16 *odds, bf16 *dropped, int64_t rows, int64_t longest) {
    over_rows(rows, [=](int64_t begin, int64_t end, int64_t) {
        std::vector<float> given(longest);
        float *g = given.data();
        for (int64_t r = begin; r < end; r++) {
            bf16 *by = by_odds + r * longest;
            const bf16 *row = odds + r * longest;
            float shared = 0;
#pragma omp simd reduction(+ : shared)
            for (int64_t c = 0; c < longest; c++) {
                g[c] = row[c] & 0x8000 ? 0.0f : wide(by[c]);
                shared += g[c] * wide(row[c]);
            }
#pragma omp simd
            for (int64_t c = 0; c < longest; c++) by[c] = narrow((g[c] - shared) * wide(row[c] & 0x7fff));
            if (!dropped) continue;
            bf16 *kept = dropped + r * longest;
#pragma omp simd
            for (int64_t c = 0; c < longest; c++) kept[c] = row[c] & 0x8000 ? bf16(0) : row[c];
        }
    });
}

// The way back through an activation: by to by_x, and to by_bias, what the columns of by_x add up to. slopes: the
// activation's derivative at each of the 2^16 numbers of bf16.
void activation_back(const bf16 *by, const bf16 *x, const float *slopes, bf16 *by_x, float *by_bias, int64_t rows,
                     int64_t columns) {
    SumsOfThreads all(columns);
    over_rows(rows, [=, &all](int64_t begin, int64_t end, int64_t thread) {
        float *sums = all.of(thread);
        for (int64_t r = begin; r < end; r++) {
            const bf16 *b = by + r * columns, *xr = x + r * columns;
            bf16 *out = by_x + r * columns;
#pragma omp simd
            for (int64_t c = 0; c < columns; c++) {
                float value = wide(b[c]) * slopes[xr[c]];
                sums[c] += value;
                out[c] = narrow(value);
            }
        }
    });
    all.add_up(by_bias);
}

// Cross entropy of each row of scores against its label, negative for a row that does not count: its sum, and how many labels
// have the highest score (the first of those that share it). by_scores, unless null, gets the gradient of the sum.
void cross_entropy(const bf16 *scores, const int64_t *labels, bf16 *by_scores, double *loss, int64_t *right, int64_t rows,
                   int64_t columns) {
    std::vector<double> losses(omp_get_max_threads());
    std::vector<int64_t> rights(omp_get_max_threads());
    double *all_losses = losses.data();
    int64_t *all_rights = rights.data();
    over_rows(rows, [=](int64_t begin, int64_t end, int64_t thread) {
        std::vector<float> all_odds(columns);
        float *odds = all_odds.data();
        for (int64_t r = begin; r < end; r++) {
            const bf16 *row = scores + r * columns;
            bf16 *by = by_scores + r * columns;
            if (labels[r] < 0) {
                if (by_scores) std::fill(by, by + columns, bf16(0));
                continue;
            }
            const auto [highest, total] = raised(row, columns, odds);
            const float score = wide(row[labels[r]]);
            all_losses[thread] += std::log(double(total)) - (score - highest);
            const auto is_as_high = [=](bf16 x) { return wide(x) == score; };
            all_rights[thread] += score == highest && std::none_of(row, row + labels[r], is_as_high);
            if (!by_scores) continue;
            const float share = 1.0f / total;
#pragma omp simd
            for (int64_t c = 0; c < columns; c++) by[c] = narrow(odds[c] * share);
            by[labels[r]] = narrow(odds[labels[r]] * share - 1.0f);
        }
    });
    for (size_t thread = 0; thread < losses.size(); thread++) *loss += losses[thread], *right += rights[thread];
}

// out [C, R] = x [R, C] turned, in squares of eight.
void turn(const bf16 *x, bf16 *out, int64_t rows, int64_t columns) {
    const int64_t side = 8, top = rows / side * side, left = columns / side * side;
    over_rows(columns / side, [=](int64_t begin, int64_t end, int64_t) {
        const int64_t run = 64;  // rows at a time, so that what is read of them is still in the cache for the next columns
        for (int64_t first = 0; first < top; first += run)
            for (int64_t c = begin * side; c < end * side; c += side)
                for (int64_t r = first; r < std::min(first + run, top); r += side)
                    turn_square(x + r * columns + c, columns, out + c * rows + r, rows);
    });
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = r < top ? left : 0; c < columns; c++) out[c * rows + r] = x[r * columns + c];
}

}  // extern "C"
