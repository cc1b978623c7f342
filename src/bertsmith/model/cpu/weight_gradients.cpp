// a^T b of two bf16 matrices by a processor's matrix units (Intel AMX), summed in fp32 and not rounded to bf16: the gradient
// of a weight, from the gradient of its map's output (a) and from the map's input (b).
//
// weight_gradients.py compiles this file on the user's machine where the processor has such units. A tile holds 16 rows of 64
// bytes; to a tile of 16 x 16 sums the unit adds the products of 16 x 32 numbers on the left and of 32 x 16 on the right,
// the latter in pairs of rows (Intel 64 Software Developer's Manual, TDPBF16PS). Both matrices are first copied into tiles:
// the left one, turned, in runs of blocks that stay in a core's second cache, the right one in panels.
//
// In which order a sum is added up depends on the number of its terms alone, so that any number of threads gives the same
// bits.
//
// Legend: out [M, N] = a [K, M]^T b [K, N]. A block is 32 rows of out, a panel 32 columns, a step 32 terms of every sum.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <omp.h>

#if defined(__AMX_BF16__) && defined(__AVX512BW__) && defined(__linux__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef uint16_t bf16;
typedef bf16 Eight __attribute__((vector_size(16)));
typedef bf16 Line __attribute__((vector_size(64)));

const int64_t SIDE = 32, TILE = 512, PAIR = 2 * TILE;  // numbers along a square of sums, in a tile, in two tiles
// As measured: terms that are packed at a time; bytes of left tiles, and blocks, that a thread works on at a time; and steps
// after which the next block has its turn, so that the right tiles of these steps stay in the first cache.
const int64_t MOST_TERMS = 2048, LEFT_BYTES = 1200 << 10, MOST_BLOCKS = 24, PART = 8;

static int64_t over(int64_t count, int64_t by) { return (count + by - 1) / by; }

// How a product is cut up: its terms into chunks, and what is to be summed into a grid of threads.
struct Plan {
    int64_t blocks, panels, chunks, steps, run;  // steps: of a chunk; run: blocks that a thread packs at a time
    int64_t grid_rows, grid_columns;

    Plan(int64_t rows, int64_t terms, int64_t columns, int64_t threads) {
        blocks = over(rows, SIDE), panels = over(columns, SIDE);
        chunks = over(terms, MOST_TERMS), steps = over(over(terms, chunks), SIDE);
        run = std::max<int64_t>(1, std::min(MOST_BLOCKS, LEFT_BYTES / (steps * PAIR * 2)));
        grid_rows = threads, grid_columns = 1;
        for (int64_t across = 2; across <= threads; across++) {
            if (threads % across) continue;
            int64_t most = over(blocks, threads / across) * over(panels, across);
            if (most < over(blocks, grid_rows) * over(panels, grid_columns))
                grid_rows = threads / across, grid_columns = across;
        }
    }

    int64_t right_numbers() const { return panels * steps * PAIR; }
    int64_t left_numbers() const { return run * steps * PAIR; }                             // of a thread
    int64_t thread_numbers() const { return left_numbers() + 2 * run * SIDE * SIDE; }  // and its squares, in fp32
};

// Eight tiles of full size: four of sums, two of the left, two of the right.
struct TileShapes {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

static const TileShapes shapes;

// Eight rows of eight, `from` apart, written as columns, SIDE apart. Each round of dealing halves like cards turns a third
// of the way (Stone, 1971).
static inline void turn_square(const bf16 *x, int64_t from, bf16 *out) {
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
    for (int i = 0; i < 8; i++) std::memcpy(out + i * SIDE, &rows[i], 16);
}

// The corner of a matrix, `high` x `wide` numbers in rows `apart`, as `rows` x `columns` with zeros around it.
static const bf16 *filled(const bf16 *x, int64_t high, int64_t wide, int64_t apart, bf16 *room, int64_t rows,
                          int64_t columns) {
    std::memset(room, 0, rows * columns * sizeof(bf16));
    for (int64_t r = 0; r < std::min(high, rows); r++)
        if (wide > 0) std::memcpy(room + r * columns, x + r * apart, std::min(wide, columns) * sizeof(bf16));
    return room;
}

// Left tiles, [blocks, steps, 2, 16 rows, 32 terms], of a [terms, rows], whose rows are `apart`.
static void pack_left(const bf16 *a, int64_t terms, int64_t rows, int64_t apart, int64_t blocks, bf16 *left) {
    const int64_t steps = over(terms, SIDE);
    bf16 room[64];
    for (int64_t t = 0; t < steps * SIDE; t += 8)
        for (int64_t r = 0; r < blocks * SIDE; r += 8) {
            bf16 *to = left + ((r / SIDE * steps + t / SIDE) * 2 + r % SIDE / 16) * TILE + r % 16 * SIDE + t % SIDE;
            const bf16 *from = a + t * apart + r;
            if (r % SIDE == 0 && t + 16 <= terms)
                for (int i = 8; i < 16; i++) _mm_prefetch(reinterpret_cast<const char *>(from + i * apart), _MM_HINT_T0);
            if (t + 8 <= terms && r + 8 <= rows) turn_square(from, apart, to);
            else turn_square(filled(from, terms - t, rows - r, apart, room, 8, 8), 8, to);
        }
}

// Right tiles, [panels, steps, 2, 16 pairs of terms, 16 columns, 2], of b [terms, columns]: of the steps `begin` to `end`.
static void pack_right(const bf16 *b, int64_t terms, int64_t columns, int64_t begin, int64_t end, bf16 *right) {
    const Line low = {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                      8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    const Line high = low + 16;
    const int64_t steps = over(terms, SIDE), panels = over(columns, SIDE);
    bf16 room[2 * SIDE];
    for (int64_t t = begin * SIDE; t < end * SIDE; t += 2)
        for (int64_t p = 0; p < panels; p++) {
            const bf16 *from = b + t * columns + p * SIDE;
            int64_t apart = columns;
            if (t + 2 > terms || (p + 1) * SIDE > columns)
                from = filled(from, terms - t, columns - p * SIDE, columns, room, 2, SIDE), apart = SIDE;
            Line one, other;
            std::memcpy(&one, from, 64);
            std::memcpy(&other, from + apart, 64);
            const Line dealt[2] = {__builtin_shuffle(one, other, low), __builtin_shuffle(one, other, high)};
            bf16 *to = right + (p * steps + t / SIDE) * PAIR + t % SIDE * 16;
            std::memcpy(to, &dealt[0], 64);
            std::memcpy(to + TILE, &dealt[1], 64);
        }
}

// Adds the products of some steps to a square of sums, which begins at zero where it is `fresh`. next: what is wanted in the
// second cache soon, `lines` of 64 bytes for each step.
static inline void add_products(const bf16 *left, const bf16 *right, int64_t steps, float *square, bool fresh,
                                const bf16 *next, int64_t lines) {
    const int64_t row = SIDE * sizeof(float);
    asm volatile("" ::: "memory");  // what was packed lies there before a tile is loaded, whatever a compiler knows of that
    if (fresh) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    } else {
        _tile_loadd(0, square, row);
        _tile_loadd(1, square + 16, row);
        _tile_loadd(2, square + 16 * SIDE, row);
        _tile_loadd(3, square + 16 * SIDE + 16, row);
    }
    for (int64_t s = 0; s < steps; s++, left += PAIR, right += PAIR) {
        _tile_loadd(4, left, 64);
        _tile_loadd(6, right, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, right + TILE, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, left + TILE, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
        for (int64_t i = 0; i < lines; i++, next += 32) _mm_prefetch(reinterpret_cast<const char *>(next), _MM_HINT_T1);
    }
    _tile_stored(0, square, row);
    _tile_stored(1, square + 16, row);
    _tile_stored(2, square + 16 * SIDE, row);
    _tile_stored(3, square + 16 * SIDE + 16, row);
}

// Writes a square's corner, rows x columns, to out, whose rows are `apart`, or adds it. `past` the caches, because a gradient
// is seldom read soon, and would be fetched into them first.
static inline void put(const float *square, int64_t rows, int64_t columns, int64_t apart, bool adds, bool past, float *out) {
    for (int64_t r = 0; r < rows; r++, square += SIDE, out += apart) {
        if (adds) {
            for (int64_t c = 0; c < columns; c++) out[c] += square[c];
        } else if (past && columns == SIDE && reinterpret_cast<uintptr_t>(out) % 64 == 0) {
            _mm512_stream_ps(out, _mm512_load_ps(square));
            _mm512_stream_ps(out + 16, _mm512_load_ps(square + 16));
        } else {
            std::memcpy(out, square, columns * sizeof(float));
        }
    }
}

extern "C" {

// given: 1 where the system lets this process use the matrix units, else 0.
void ask_for_tiles(int64_t *given) {
    const int64_t request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    *given = syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

// bytes: of the room that `turned_product` wants.
void room_for(int64_t rows, int64_t terms, int64_t columns, int64_t *bytes) {
    const int64_t threads = omp_get_max_threads();
    const Plan plan(rows, terms, columns, threads);
    *bytes = (plan.right_numbers() + threads * plan.thread_numbers()) * int64_t(sizeof(bf16));
}

// out fp32[M, N] = a [K, M]^T b [K, N]; none of M, K and N is 0. room begins at a line of 64 bytes.
void turned_product(const bf16 *a, const bf16 *b, float *out, bf16 *room, int64_t rows, int64_t terms, int64_t columns) {
#pragma omp parallel
    {
        const int64_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
        const Plan plan(rows, terms, columns, threads);
        const int64_t down = thread / plan.grid_columns, across = thread % plan.grid_columns;
        const int64_t last_block = plan.blocks * (down + 1) / plan.grid_rows;
        const int64_t first_panel = plan.panels * across / plan.grid_columns;
        const int64_t last_panel = plan.panels * (across + 1) / plan.grid_columns;
        bf16 *left = room + plan.right_numbers() + thread * plan.thread_numbers();
        float *squares = reinterpret_cast<float *>(left + plan.left_numbers());
        _tile_loadconfig(&shapes);
        for (int64_t from = 0; from < terms; from += plan.steps * SIDE) {
            const int64_t count = std::min(plan.steps * SIDE, terms - from);
            const int64_t steps = over(count, SIDE), parts = over(steps, PART);
            pack_right(b + from * columns, count, columns, steps * thread / threads, steps * (thread + 1) / threads, room);
#pragma omp barrier
            for (int64_t block = plan.blocks * down / plan.grid_rows; block < last_block; block += plan.run) {
                const int64_t run = std::min(plan.run, last_block - block), row = block * SIDE;
                pack_left(a + from * rows + row, count, rows - row, rows, run, left);
                for (int64_t p = first_panel; p < last_panel; p++) {
                    const bf16 *panel = room + p * steps * PAIR, *next = panel + steps * PAIR;
                    const int64_t column = p * SIDE, lines = over(steps * PAIR / 32, run * steps);
                    for (int64_t part = 0; part < parts; part++) {
                        const int64_t begin = steps * part / parts, end = steps * (part + 1) / parts;
                        for (int64_t i = 0; i < run; i++) {
                            float *square = squares + i * SIDE * SIDE;
                            add_products(left + (i * steps + begin) * PAIR, panel + begin * PAIR, end - begin, square,
                                         part == 0, next, lines);
                            next += (end - begin) * lines * 32;
                            if (part + 1 < parts) continue;
                            const int64_t r = row + i * SIDE;
                            put(square, std::min(SIDE, rows - r), std::min(SIDE, columns - column), columns, from > 0,
                                plan.chunks == 1, out + r * columns + column);
                        }
                    }
                }
            }
#pragma omp barrier
        }
        _mm_sfence();
        _tile_release();
    }
}

}  // extern "C"
#else
#error "this compiler does not know the matrix units"
#endif
