// gated_group_rmsnorm: one warp a row and group, as Modular's GPU kernels share the work.

#include "common.cuh"

namespace refkern {
namespace {

struct Norm {
  int64_t rows, groups, group_size;
  float eps;
  // silu is g / (1 + e); otherwise g * (1 / (1 + e))
  bool quotient;
  // exp and the root by the special-function unit alone, as Mojo compiles them for sm_90a
  bool approximate;
  // gated * rstd is rounded to y's type before the weight
  bool cast_before_weight;
};

__device__ float silu(float gate, const Norm& norm) {
  const float e = norm.approximate
                      ? ex2_approx_ftz(__fmul_rn(gate, __uint_as_float(0xbfb8aa3bu)))
                      : expf(-gate);
  const float below = __fadd_rn(1.0f, e);
  return norm.quotient ? __fdiv_rn(gate, below) : __fmul_rn(gate, __frcp_rn(below));
}

// y and gate: [rows, width]; gate may be null.  VECTOR: neighbours that a lane takes at a time.
template <typename Y, typename G, int VECTOR>
__global__ void norm_kernel(const Y* y, const G* gate, const float* weight, Y* out,
                            float* sums, float* rstds, Norm norm) {
  const int lane = threadIdx.x % WARP;
  const int64_t warps = static_cast<int64_t>(gridDim.x) * (blockDim.x / WARP);
  const int64_t first =
      static_cast<int64_t>(blockIdx.x) * (blockDim.x / WARP) + threadIdx.x / WARP;

  for (int64_t unit = first; unit < norm.rows * norm.groups; unit += warps) {
    const int64_t channel = unit % norm.groups * norm.group_size;
    const int64_t start = unit * norm.group_size;
    auto gated = [&](int64_t i) {
      const float value = widen(y[start + i]);
      return gate == nullptr ? value : __fmul_rn(value, silu(widen(gate[start + i]), norm));
    };

    float sum = 0.0f;
    for (int64_t at = lane * VECTOR; at < norm.group_size; at += WARP * VECTOR) {
      if constexpr (VECTOR == 1) {
        const float x = gated(at);
        sum = __fmaf_rn(x, x, sum);
      } else {
        // The first halving is contracted, the others are additions.
        float terms[VECTOR / 2];
#pragma unroll
        for (int i = 0; i < VECTOR / 2; i++) {
          const float x = gated(at + i), other = gated(at + i + VECTOR / 2);
          terms[i] = __fmaf_rn(x, x, __fmul_rn(other, other));
        }
#pragma unroll
        for (int half = VECTOR / 4; half > 0; half /= 2) {
#pragma unroll
          for (int i = 0; i < half; i++) terms[i] = __fadd_rn(terms[i], terms[i + half]);
        }
        sum = __fadd_rn(sum, terms[0]);
      }
    }
    sum = butterfly(sum, WARP);

    const float mean = __fdiv_rn(sum, static_cast<float>(norm.group_size));
    const float inside = __fadd_rn(mean, norm.eps);
    const float rstd = norm.approximate ? rsqrt_approx_ftz(inside) : rsqrtf(inside);
    if (lane == 0) {
      sums[unit] = sum;
      rstds[unit] = rstd;
    }
    for (int64_t i = lane; i < norm.group_size; i += WARP) {
      float value = __fmul_rn(gated(i), rstd);
      if (norm.cast_before_weight) value = widen(narrow<Y>(value));
      out[start + i] = narrow<Y>(__fmul_rn(weight[channel + i], value));
    }
  }
}

template <typename Y, typename G>
void launch(const Buffer& y, const Buffer& gate, bool has_gate, const Buffer& weight,
            const Buffer& out, const Buffer& sums, const Buffer& rstds, int vector,
            const Norm& norm) {
  constexpr int THREADS = 128;
  const int64_t units = norm.rows * norm.groups;
  if (units == 0) return;
  auto kernel = vector == 1   ? norm_kernel<Y, G, 1>
                : vector == 4 ? norm_kernel<Y, G, 4>
                              : norm_kernel<Y, G, 8>;
  kernel<<<blocks_for(units, THREADS / WARP), THREADS>>>(
      y.as<Y>(), has_gate ? gate.as<G>() : nullptr, weight.as<float>(), out.as<Y>(),
      sums.as<float>(), rstds.as<float>(), norm);
  finish("gated_group_rmsnorm");
}

}  // namespace
}  // namespace refkern

// y, gate, out: [rows, groups * group_size] on the host; weight float32.  sums, rstds: [rows,
// groups].  vector: 1, 4 or 8, and group_size is a multiple of it.
extern "C" const char* refkern_gated_group_rmsnorm(
    const void* y, int y_type, const void* gate, int gate_type, const float* weight, void* out,
    float* sums, float* rstds, int64_t rows, int64_t groups, int64_t group_size, float eps,
    int vector, int quotient, int approximate, int cast_before_weight) {
  using namespace refkern;
  return guarded([&] {
    if ((vector != 1 && vector != 4 && vector != 8) || group_size % vector != 0) {
      throw std::runtime_error("a group is whole vectors of 1, 4 or 8");
    }
    const Norm norm{rows, groups, group_size, eps, quotient != 0, approximate != 0,
                    cast_before_weight != 0};
    const int64_t width = groups * group_size;
    with_type(y_type, [&](auto y_element) {
      with_type(gate_type, [&](auto gate_element) {
        using Y = decltype(y_element);
        using G = decltype(gate_element);
        Buffer y_there(y, rows * width * sizeof(Y));
        Buffer gate_there(gate, gate == nullptr ? 0 : rows * width * sizeof(G));
        Buffer weight_there(weight, width * sizeof(float));
        Buffer out_there(rows * width * sizeof(Y));
        Buffer sums_there(rows * groups * sizeof(float)), rstds_there(rows * groups * sizeof(float));
        launch<Y, G>(y_there, gate_there, gate != nullptr, weight_there, out_there, sums_there,
                     rstds_there, vector, norm);
        out_there.copy_to(out);
        sums_there.copy_to(sums);
        rstds_there.copy_to(rstds);
      });
    });
  });
}
