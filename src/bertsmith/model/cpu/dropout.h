// Which places of a row dropout keeps: 16 bits of SplitMix64 (Steele, Lea and Flood, 2014) for each, by key, row and column.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

class Dropout {
  public:
    // room: columns that may be read, at least as many as there are.
    Dropout(int64_t columns, uint64_t key, uint32_t threshold, float scale, int64_t room = 0)
        : words_((columns + 3) / 4), key_(key), threshold_(threshold), scale_(scale),
          bits_(std::max(4 * words_, room)), factors_(std::max(columns, room)) {}

    // 0 where a place is dropped, which has the probability threshold / 2^16, else the scale.
    const float *factors(int64_t row) {
        const int64_t words = words_;
        const uint64_t step = 0x9e3779b97f4a7c15u, first = key_ + uint64_t(row) * uint64_t(words) * step;
        uint16_t *bits = bits_.data();
        float *factors = factors_.data();
#pragma omp simd
        for (int64_t i = 0; i < words; i++) {
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
