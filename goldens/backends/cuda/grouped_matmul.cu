// grouped_matmul: a warp an output for few tokens, tensor cores for many.

#include "common.cuh"

namespace refkern {
namespace {

struct Shape {
  int64_t rows, columns, k;
};

__device__ inline float halved(float* terms, int from, int to) {
  for (int half = from / 2; half >= to; half /= 2) {
    for (int i = 0; i < half; i++) terms[i] = __fadd_rn(terms[i], terms[i + half]);
  }
  return terms[0];
}

// One warp an output.  A lane takes vectors of 8 neighbours, 256 elements a step of the warp; what
// is left goes one element a lane into accumulator 0.
template <typename T, int ACCUMULATORS>
__global__ void gemv_kernel(const T* a, const T* b, const int64_t* expert_of_row, float* out,
                            Shape shape) {
  constexpr int VECTOR = 8;
  const int lane = threadIdx.x % WARP;
  const int64_t warps = static_cast<int64_t>(gridDim.x) * (blockDim.x / WARP);
  const int64_t first =
      static_cast<int64_t>(blockIdx.x) * (blockDim.x / WARP) + threadIdx.x / WARP;
  const int64_t whole = shape.k / (WARP * VECTOR) * (WARP * VECTOR);

  for (int64_t unit = first; unit < shape.rows * shape.columns; unit += warps) {
    const int64_t row = unit / shape.columns, column = unit % shape.columns;
    const int64_t expert = expert_of_row[row];
    if (expert < 0) {
      if (lane == 0) out[unit] = 0.0f;
      continue;
    }
    const T* left = a + row * shape.k;
    const T* right = b + (expert * shape.columns + column) * shape.k;
    auto product = [&](int64_t i) { return __fmul_rn(widen(left[i]), widen(right[i])); };

    float sums[ACCUMULATORS] = {};
    for (int64_t at = lane * VECTOR; at < whole; at += WARP * VECTOR) {
      float terms[VECTOR];
#pragma unroll
      for (int i = 0; i < VECTOR; i++) terms[i] = product(at + i);
      halved(terms, VECTOR, ACCUMULATORS);
#pragma unroll
      for (int i = 0; i < ACCUMULATORS; i++) sums[i] = __fadd_rn(sums[i], terms[i]);
    }
    for (int64_t at = whole + lane; at < shape.k; at += WARP) {
      sums[0] = __fadd_rn(sums[0], product(at));
    }
    const float sum = butterfly(halved(sums, ACCUMULATORS, 1), WARP);
    if (lane == 0) out[unit] = sum;
  }
}

// k ascending, one thread an output: a chain of fma, or the exact sum rounded once.
template <typename T, bool EXACT>
__global__ void chain_kernel(const T* a, const T* b, const int64_t* expert_of_row, float* out,
                             Shape shape) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t unit = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       unit < shape.rows * shape.columns; unit += stride) {
    const int64_t row = unit / shape.columns, column = unit % shape.columns;
    const int64_t expert = expert_of_row[row];
    if (expert < 0) {
      out[unit] = 0.0f;
      continue;
    }
    const T* left = a + row * shape.k;
    const T* right = b + (expert * shape.columns + column) * shape.k;
    if constexpr (EXACT) {
      // Two float64, of which the lower one collects what the upper one loses (TwoSum).
      double upper = 0.0, lower = 0.0;
      for (int64_t i = 0; i < shape.k; i++) {
        const double term = __dmul_rn(widen(left[i]), widen(right[i]));
        const double sum = __dadd_rn(upper, term);
        const double virtual_term = __dsub_rn(sum, upper);
        const double lost = __dadd_rn(__dsub_rn(upper, __dsub_rn(sum, virtual_term)),
                                      __dsub_rn(term, virtual_term));
        upper = sum;
        lower = __dadd_rn(lower, lost);
      }
      if (!isfinite(upper)) {
        out[unit] = static_cast<float>(upper);
        continue;
      }
      // To odd first, so that the rounding to float32 is the only one.
      double sum = __dadd_rn(upper, lower);
      const double rest = __dsub_rn(lower, __dsub_rn(sum, upper));
      const long long bits = __double_as_longlong(sum);
      if (rest != 0.0 && (bits & 1) == 0) {
        sum = __longlong_as_double(bits + ((rest > 0.0) == (sum > 0.0) ? 1 : -1));
      }
      out[unit] = __double2float_rn(sum);
    } else {
      float sum = 0.0f;
      for (int64_t i = 0; i < shape.k; i++) {
        sum = __fmaf_rn(widen(left[i]), widen(right[i]), sum);
      }
      out[unit] = sum;
    }
  }
}

__device__ inline void mma(float (&sum)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                           __nv_bfloat16) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ inline void mma(float (&sum)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                           __half) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Two neighbours of a row of k elements as one register; beyond the end, and of no row, zeros.
template <typename T>
__device__ inline uint32_t pair_at(const T* row, bool live, int64_t at, int64_t k) {
  const auto* codes = reinterpret_cast<const uint16_t*>(row);
  const uint32_t low = live && at < k ? codes[at] : 0;
  const uint32_t high = live && at + 1 < k ? codes[at + 1] : 0;
  return low | high << 16;
}

// Up to 16 rows of one group.
struct Tile {
  int64_t row, rows, expert;
};

// One warp a tile of 16 rows and 8 columns: a chain of m16n8k16 with K ascending, from +0.
template <typename T>
__global__ void mma_kernel(const T* a, const T* b, const Tile* tiles, int64_t tile_count,
                           float* out, Shape shape) {
  const int lane = threadIdx.x % WARP, row_in_tile = lane / 4, quarter = lane % 4;
  const int64_t column_tiles = (shape.columns + 7) / 8;
  const int64_t warps = static_cast<int64_t>(gridDim.x) * (blockDim.x / WARP);
  const int64_t first =
      static_cast<int64_t>(blockIdx.x) * (blockDim.x / WARP) + threadIdx.x / WARP;

  for (int64_t unit = first; unit < tile_count * column_tiles; unit += warps) {
    const Tile tile = tiles[unit / column_tiles];
    const int64_t column = unit % column_tiles * 8;
    float sum[4] = {};
    if (tile.expert >= 0) {
      const bool upper = row_in_tile < tile.rows, lower = row_in_tile + 8 < tile.rows;
      const bool in_columns = column + row_in_tile < shape.columns;
      const T* upper_row = a + (upper ? tile.row + row_in_tile : 0) * shape.k;
      const T* lower_row = a + (lower ? tile.row + row_in_tile + 8 : 0) * shape.k;
      const T* right =
          b + (tile.expert * shape.columns + (in_columns ? column + row_in_tile : 0)) * shape.k;
      for (int64_t base = 0; base < shape.k; base += 16) {
        const int64_t at = base + quarter * 2;
        const uint32_t left[4] = {
            pair_at(upper_row, upper, at, shape.k), pair_at(lower_row, lower, at, shape.k),
            pair_at(upper_row, upper, at + 8, shape.k), pair_at(lower_row, lower, at + 8, shape.k)};
        const uint32_t others[2] = {pair_at(right, in_columns, at, shape.k),
                                    pair_at(right, in_columns, at + 8, shape.k)};
        mma(sum, left, others, T{});
      }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int in_tile = row_in_tile + i / 2 * 8;
      const int64_t at = column + quarter * 2 + i % 2;
      if (in_tile < tile.rows && at < shape.columns) {
        out[(tile.row + in_tile) * shape.columns + at] = sum[i];
      }
    }
  }
}

template <typename Out>
__global__ void narrow_kernel(const float* sums, Out* out, int64_t count) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    out[i] = narrow<Out>(sums[i]);
  }
}

// 8, 2 and 1: a GEMV with so many accumulators a lane.
enum Order { SEQUENTIAL = -1, EXACT_SUM = -2, TENSOR_CORES = -3 };

template <typename T>
void multiply(int order, const T* a, const T* b, const int64_t* expert_of_row, const Tile* tiles,
              int64_t tile_count, float* out, const Shape& shape) {
  constexpr int THREADS = 128;
  const int64_t outputs = shape.rows * shape.columns;
  const unsigned by_warp = blocks_for(outputs, THREADS / WARP);
  if (order == TENSOR_CORES) {
    const int64_t units = tile_count * ceil_div(shape.columns, 8);
    mma_kernel<T><<<blocks_for(units, THREADS / WARP), THREADS>>>(a, b, tiles, tile_count, out,
                                                                  shape);
  } else if (order == SEQUENTIAL) {
    chain_kernel<T, false><<<blocks_for(outputs, THREADS), THREADS>>>(a, b, expert_of_row, out,
                                                                      shape);
  } else if (order == EXACT_SUM) {
    chain_kernel<T, true><<<blocks_for(outputs, THREADS), THREADS>>>(a, b, expert_of_row, out,
                                                                     shape);
  } else if (order == 8) {
    gemv_kernel<T, 8><<<by_warp, THREADS>>>(a, b, expert_of_row, out, shape);
  } else if (order == 2) {
    gemv_kernel<T, 2><<<by_warp, THREADS>>>(a, b, expert_of_row, out, shape);
  } else if (order == 1) {
    gemv_kernel<T, 1><<<by_warp, THREADS>>>(a, b, expert_of_row, out, shape);
  } else {
    throw std::runtime_error("unknown order " + std::to_string(order));
  }
  finish("grouped_matmul");
}

}  // namespace
}  // namespace refkern

// a: [rows, k]; b: [experts, columns, k], of one 16-bit type.  expert_of_row: [rows], -1 for zeros.
// tiles: [tile_count, 3], first row, rows (up to 16) and expert; they cover every row once.
// accumulators: float32 [rows, columns]; out: the same in out_type.
extern "C" const char* refkern_grouped_matmul(const void* a, const void* b, int type,
                                              const int64_t* expert_of_row, const int64_t* tiles,
                                              int64_t tile_count, float* accumulators, void* out,
                                              int out_type, int64_t rows, int64_t columns,
                                              int64_t k, int64_t experts, int order) {
  using namespace refkern;
  return guarded([&] {
    if (type != 0 && type != 1) throw std::runtime_error("operands have 16 bits");
    const Shape shape{rows, columns, k};
    const int64_t count = rows * columns;
    Buffer a_there(a, rows * k * 2), b_there(b, experts * columns * k * 2);
    Buffer experts_there(expert_of_row, rows * sizeof(int64_t));
    Buffer tiles_there(tiles, tile_count * sizeof(Tile));
    Buffer sums_there(count * sizeof(float));
    if (count > 0) {
      auto with = [&](auto element) {
        using T = decltype(element);
        multiply<T>(order, a_there.as<T>(), b_there.as<T>(), experts_there.as<int64_t>(),
                    tiles_there.as<Tile>(), tile_count, sums_there.as<float>(), shape);
      };
      type == 0 ? with(__nv_bfloat16{}) : with(__half{});
    }
    with_type(out_type, [&](auto element) {
      using Out = decltype(element);
      Buffer out_there(count * sizeof(Out));
      if (count > 0) {
        narrow_kernel<Out><<<blocks_for(count, 256), 256>>>(sums_there.as<float>(),
                                                            out_there.as<Out>(), count);
        finish("grouped_matmul's store");
      }
      out_there.copy_to(out);
    });
    sums_there.copy_to(accumulators);
  });
}
