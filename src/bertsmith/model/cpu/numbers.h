// The numbers that kernels read and write, bf16 and fp32, and functions of fp32 that a compiler makes vectors of.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

enum class bf16 : uint16_t {};

static inline uint32_t bits_of(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    return bits;
}

static inline float float_of(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}

static inline float wide(bf16 x) { return float_of(uint32_t(x) << 16); }
static inline float wide(float x) { return x; }

// Rounded to the nearest even; NaN stays NaN.
template <typename Number> static inline Number narrow(float x);
template <> inline bf16 narrow<bf16>(float x) {
    const uint32_t bits = bits_of(x), rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return bf16((bits & 0x7fffffff) > 0x7f800000 ? (bits >> 16) | 0x40 : rounded);
}
template <> inline float narrow<float>(float x) { return x; }

// The sign bit, of NaN and 0 too.
static inline bool is_negative(bf16 x) { return uint16_t(x) & 0x8000; }
static inline bool is_negative(float x) { return bits_of(x) >> 31; }
static inline bf16 magnitude(bf16 x) { return bf16(uint16_t(x) & 0x7fff); }
static inline float magnitude(float x) { return float_of(bits_of(x) & 0x7fffffff); }
static inline bf16 negative_if(bool negative, bf16 x) { return bf16(uint16_t(x) | (negative ? 0x8000 : 0)); }
static inline float negative_if(bool negative, float x) { return float_of(bits_of(x) | (negative ? 0x80000000u : 0)); }

// e^x to 2e-7 for x in [-70, 88], 0 below and the value at this end above; NaN for NaN (Cephes' expf). Below -70 it would
// be so small that its products may be too small for normal numbers, for which a processor takes ten times as long.
static inline float exponential(float x) {
    float inside = x < -70.0f ? -70.0f : x;
    inside = inside > 88.0f ? 88.0f : inside;
    const float whole = std::floor(inside * 1.44269504f + 0.5f);
    const float rest = inside - whole * 0.693359375f + whole * 2.12194440e-4f;
    float sum = 1.9875691500e-4f;
    sum = sum * rest + 1.3981999507e-3f;
    sum = sum * rest + 8.3334519073e-3f;
    sum = sum * rest + 4.1665795894e-2f;
    sum = sum * rest + 1.6666665459e-1f;
    sum = sum * rest + 5.0000001201e-1f;
    sum = sum * rest * rest + rest + 1.0f;
    return x < -70.0f ? 0.0f : sum * float_of(uint32_t(int32_t(whole) + 127) << 23);
}

// The derivatives of activations, to 3e-7; NaN for NaN and for infinity, as in PyTorch.

struct Gelu {  // x P(X < x) for a normal X
    static float derivative(float x) {
        const float bell = exponential(-0.5f * x * x), t = 1.0f / (1.0f + 0.3275911f * 0.707106781f * std::fabs(x));
        // The complementary error function: Abramowitz and Stegun (1964), 7.1.26.
        float sum = 1.061405429f;
        sum = sum * t - 1.453152027f;
        sum = sum * t + 1.421413741f;
        sum = sum * t - 0.284496736f;
        sum = sum * t + 0.254829592f;
        const float outside = 0.5f * sum * t * bell;
        return (x < 0.0f ? outside : 1.0f - outside) + x * bell * 0.398942280f;
    }
};

struct GeluTanh {  // x / (1 + e^(-2 u)) with u = sqrt(2 / pi) (x + 0.044715 x^3)
    static float derivative(float x) {
        const float twice = 1.59576912f * (x + 0.044715f * x * x * x), power = exponential(-std::fabs(twice));
        const float share = 1.0f / (1.0f + power), steep = 1.59576912f * (1.0f + 0.134145f * x * x);
        const float rise = power == 0.0f ? 0.0f : power * share * share * steep;
        return (twice < 0.0f ? power * share : share) + x * rise;
    }
};

struct Relu {
    static float derivative(float x) { return x <= 0.0f ? 0.0f : 1.0f; }
};
