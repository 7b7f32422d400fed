// gated_rmsnorm: a row on the lanes of a warp, or on several warps, as the WebGPU routes share it.

#include "common.cuh"

namespace refkern {
namespace {

// Which roundings follow on the norm.
enum Finish { ONE_STORE, GATE_THEN_SIGMOID, CAST_EACH };

constexpr int MOST_LANES = 256;

struct Norm {
  int64_t rows, columns;
  float epsilon;
  // that share a row: a power of two up to 256
  int lanes;
  // of them are combined by halves; the sums of several such parts are then added in order
  int part;
  bool sigmoid_only;
  Finish finish;
};

// One of the two exponents overflows nowhere.
__device__ float stable_sigmoid(float z) {
  if (!(z < 0.0f)) return __frcp_rn(__fadd_rn(1.0f, expf(-z)));
  const float e = expf(z);
  return __fdiv_rn(e, __fadd_rn(1.0f, e));
}

template <typename T>
__device__ T finished(float normalized, float scale, float gate, const Norm& norm) {
  if (norm.finish == CAST_EACH) {
    const float below = __fadd_rn(1.0f, expf(-gate));
    const float value = norm.sigmoid_only ? __frcp_rn(below) : __fdiv_rn(gate, below);
    const float rounded = widen(narrow<T>(normalized));
    const float weighed = widen(narrow<T>(__fmul_rn(scale, rounded)));
    return narrow<T>(__fmul_rn(weighed, value));
  }
  const float weighed = __fmul_rn(normalized, scale);
  const float sigmoid = stable_sigmoid(gate);
  if (norm.sigmoid_only) return narrow<T>(__fmul_rn(weighed, sigmoid));
  if (norm.finish == GATE_THEN_SIGMOID) {
    return narrow<T>(__fmul_rn(__fmul_rn(weighed, gate), sigmoid));
  }
  return narrow<T>(__fmul_rn(weighed, __fmul_rn(gate, sigmoid)));
}

// x, gate, out: [rows, columns]; scale: [columns].  A block has max(64, lanes) threads.
template <typename T, int VECTOR>
__global__ void norm_kernel(const T* x, const T* scale, const T* gate, T* out, float* sums,
                            float* invs, Norm norm) {
  __shared__ float shared_sums[MOST_LANES];
  const int lane = threadIdx.x % norm.lanes;
  const int rows_in_block = blockDim.x / norm.lanes;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * rows_in_block;

  // Every thread of a block makes the same number of steps: there are barriers inside.
  for (int64_t base = static_cast<int64_t>(blockIdx.x) * rows_in_block; base < norm.rows;
       base += stride) {
    const int64_t row = base + threadIdx.x / norm.lanes;
    const bool live = row < norm.rows;
    const int64_t start = row * norm.columns;

    float sum = 0.0f;
    if (live) {
      for (int64_t at = lane * VECTOR; at < norm.columns; at += norm.lanes * VECTOR) {
        float dot = 0.0f;
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
          const float v = widen(x[start + at + i]);
          const float square = __fmul_rn(v, v);
          dot = i == 0 ? square : __fadd_rn(dot, square);
        }
        sum = __fadd_rn(sum, dot);
      }
    }
    if (norm.part <= WARP) {
      sum = butterfly(sum, norm.part);
      if (norm.part < norm.lanes) {
        __syncthreads();
        shared_sums[threadIdx.x] = sum;
        __syncthreads();
        const int own = threadIdx.x - lane;
        sum = 0.0f;
        for (int other = 0; other < norm.lanes; other += norm.part) {
          sum = __fadd_rn(sum, shared_sums[own + other]);
        }
      }
    } else {
      __syncthreads();
      shared_sums[threadIdx.x] = sum;
      __syncthreads();
      for (int half = norm.lanes / 2; half > 0; half /= 2) {
        if (lane < half) {
          shared_sums[threadIdx.x] =
              __fadd_rn(shared_sums[threadIdx.x], shared_sums[threadIdx.x + half]);
        }
        __syncthreads();
      }
      sum = shared_sums[threadIdx.x - lane];
    }
    if (!live) continue;

    const float mean = __fdiv_rn(sum, static_cast<float>(norm.columns));
    const float inv = rsqrtf(__fadd_rn(mean, norm.epsilon));
    if (lane == 0) {
      sums[row] = sum;
      invs[row] = inv;
    }
    for (int64_t i = lane; i < norm.columns; i += norm.lanes) {
      const float normalized = __fmul_rn(widen(x[start + i]), inv);
      out[start + i] =
          finished<T>(normalized, widen(scale[i]), widen(gate[start + i]), norm);
    }
  }
}

}  // namespace
}  // namespace refkern

// x, gate, out: [rows, columns] on the host; scale: [columns]; all of one type.  sums, invs: [rows].
extern "C" const char* refkern_gated_rmsnorm(const void* x, int type, const void* scale,
                                             const void* gate, void* out, float* sums, float* invs,
                                             int64_t rows, int64_t columns, float epsilon,
                                             int vector, int lanes, int part, int sigmoid_only,
                                             int finish_kind) {
  using namespace refkern;
  return guarded([&] {
    const bool powers = lanes > 0 && (lanes & (lanes - 1)) == 0 && part > 0 && lanes % part == 0;
    if (!powers || lanes > MOST_LANES || (part > WARP && part != lanes)) {
      throw std::runtime_error("lanes are a power of two up to 256, parts are warps or all");
    }
    if ((vector != 1 && vector != 4) || columns % vector != 0) {
      throw std::runtime_error("a row is whole vectors of 1 or 4");
    }
    const Norm norm{rows, columns, epsilon, lanes, part, sigmoid_only != 0,
                    static_cast<Finish>(finish_kind)};
    with_type(type, [&](auto element) {
      using T = decltype(element);
      const size_t bytes = rows * columns * sizeof(T);
      Buffer x_there(x, bytes), gate_there(gate, bytes), out_there(bytes);
      Buffer scale_there(scale, columns * sizeof(T));
      Buffer sums_there(rows * sizeof(float)), invs_there(rows * sizeof(float));
      if (rows > 0) {
        const int threads = lanes > 64 ? lanes : 64;
        auto kernel = vector == 1 ? norm_kernel<T, 1> : norm_kernel<T, 4>;
        kernel<<<blocks_for(rows, threads / lanes), threads>>>(
            x_there.as<T>(), scale_there.as<T>(), gate_there.as<T>(), out_there.as<T>(),
            sums_there.as<float>(), invs_there.as<float>(), norm);
        finish("gated_rmsnorm");
      }
      out_there.copy_to(out);
      sums_there.copy_to(sums);
      invs_there.copy_to(invs);
    });
  });
}
