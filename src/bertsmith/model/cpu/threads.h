// Rows dealt to the threads that PyTorch has already.
//
// PyTorch's OpenMP library is called by the names that it exports instead of by `#pragma omp parallel`: a compiler turns the
// pragma into calls of its own OpenMP library, and clang's would come with threads of its own, which wait for work on the
// cores that PyTorch's threads compute on. GNU's, LLVM's and Intel's library all have these names.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

extern "C" {
int omp_get_num_threads(void);
int omp_get_thread_num(void);
void GOMP_parallel(void (*work)(void *), void *given, unsigned threads, unsigned flags);
}

// Threads get whole blocks of rows. Blocks depend on the number of rows alone, so that sums over the rows of a block, added
// up in the order of blocks, have the same bits by any number of threads.
static inline int64_t rows_of_a_block(int64_t rows) { return std::max<int64_t>(16, (rows + 63) / 64); }

// Runs `work(first row, row behind the last)` in every thread that has rows.
template <typename Work> static void over_rows(int64_t rows, Work work) {
    struct Call {
        Work &work;
        int64_t rows;
    } call{work, rows};
    const auto run = [](void *given) {
        Call &call = *static_cast<Call *>(given);
        const int64_t size = rows_of_a_block(call.rows), blocks = (call.rows + size - 1) / size;
        const int64_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
        const int64_t begin = blocks * thread / threads * size;
        const int64_t end = std::min(call.rows, blocks * (thread + 1) / threads * size);
        if (begin < end) call.work(begin, end);
    };
    GOMP_parallel(run, &call, 0, 0);
}

// `columns` sums over rows, each block of rows its own.
template <typename Number> class SumsOfBlocks {
  public:
    SumsOfBlocks(int64_t rows, int64_t columns)
        : columns_(columns), size_(rows_of_a_block(rows)), sums_((rows + size_ - 1) / size_ * columns) {}

    // Where what a row adds belongs.
    Number *of(int64_t row) { return sums_.data() + row / size_ * columns_; }

    void add_up(Number *total) const {
        std::fill(total, total + columns_, Number(0));
        for (size_t block = 0; block < sums_.size(); block += columns_)
            for (int64_t c = 0; c < columns_; c++) total[c] += sums_[block + c];
    }

  private:
    int64_t columns_, size_;
    std::vector<Number> sums_;
};
