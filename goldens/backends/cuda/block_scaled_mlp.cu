// block_scaled_mlp in the order of vLLM's glm5next DenseMlp: quantise, gate_up, SwiGLU, quantise,
// down, with FP8 mma.sync and slices of 512 of K.

#include <cuda_fp8.h>

#include "common.cuh"

namespace refkern {
namespace {

constexpr int GROUP = 128;
constexpr int ROWS = 16;   // of a tile of weights
constexpr int TOKENS = 8;  // of a tile of activations
constexpr int MOST_WARPS = 8;

// Who bounds and rounds what; one rule and one variant at a time.
struct Rule {
  float amax_floor, scale_floor;
  bool power_of_two;
  // scale = amax * RN(1 / 448); otherwise amax / 448
  bool scale_by_product;
  // code of x / scale; otherwise of x * RN(1 / scale)
  bool code_by_quotient;
  // to +-448 by fmin and fmax, which make -448 of a NaN
  bool clamp;
};

struct Swiglu {
  bool has_limit;
  float gate_limit, up_limit;
  // a NaN stays; otherwise it becomes the limit
  bool keeps_nan;
  // silu is rounded to bfloat16 before the product
  bool rounds_silu;
  // up + 0, which makes +0 of -0
  bool adds_zero;
};

__device__ inline float power_at_least(float scale) {
  const uint32_t bits = __float_as_uint(scale);
  return __uint_as_float(((bits >> 23) + ((bits & 0x7fffffu) != 0)) << 23);
}

// One warp a token and group.  codes: [tokens, groups * 128]; what fills up the last group is 0.
__global__ void quantize_kernel(const __nv_bfloat16* x, uint8_t* codes, float* scales,
                                int64_t tokens, int64_t k, int64_t groups, Rule rule) {
  const int lane = threadIdx.x % WARP;
  const int64_t warps = static_cast<int64_t>(gridDim.x) * (blockDim.x / WARP);
  const int64_t first =
      static_cast<int64_t>(blockIdx.x) * (blockDim.x / WARP) + threadIdx.x / WARP;
  for (int64_t unit = first; unit < tokens * groups; unit += warps) {
    const int64_t token = unit / groups, start = unit % groups * GROUP;
    float amax = 0.0f;
    for (int i = lane; i < GROUP; i += WARP) {
      if (start + i < k) amax = fmaxf(amax, fabsf(widen(x[token * k + start + i])));
    }
    for (int distance = WARP / 2; distance > 0; distance /= 2) {
      amax = fmaxf(amax, __shfl_xor_sync(ALL_LANES, amax, distance));
    }
    amax = fmaxf(amax, rule.amax_floor);
    float scale = rule.scale_by_product ? __fmul_rn(amax, __frcp_rn(448.0f))
                                        : __fdiv_rn(amax, 448.0f);
    scale = fmaxf(scale, rule.scale_floor);
    if (rule.power_of_two) scale = power_at_least(scale);
    const float inverse = __frcp_rn(scale);
    for (int i = lane; i < GROUP; i += WARP) {
      uint8_t code = 0;
      if (start + i < k) {
        const float value = widen(x[token * k + start + i]);
        float scaled = rule.code_by_quotient ? __fdiv_rn(value, scale) : __fmul_rn(value, inverse);
        if (rule.clamp) scaled = fminf(fmaxf(scaled, -448.0f), 448.0f);
        code = __nv_cvt_float_to_fp8(scaled, __NV_SATFINITE, __NV_E4M3);
      }
      codes[unit * GROUP + i] = code;
    }
    if (lane == 0) scales[unit] = scale;
  }
}

__device__ inline void mma(float (&sum)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                           uint32_t b0, uint32_t b1) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#else
  __trap();  // no FP8 before sm_89; the host does not launch it there
#endif
}

__device__ inline uint4 sixteen_codes(const uint8_t* codes, bool live) {
  return live ? *reinterpret_cast<const uint4*>(codes) : make_uint4(0, 0, 0, 0);
}

// sums[token, row] = sum over groups of dot(w[row], x[token]) * (w_scale * x_scale).
//
// x: [tokens, groups * 128] codes; w: [rows, groups * 128] codes; x_scale: [tokens, groups];
// w_scale: [blocks, groups], where rows below `half` are tiled from row 0 and the others from
// `half`.  A block is a tile of 16 rows and 8 tokens, a warp takes a slice of so many groups at a
// time, and the slices' sums are added in order, from +0.
__global__ void project_kernel(const uint8_t* x, const float* x_scale, const uint8_t* w,
                               const float* w_scale, float* sums, int64_t tokens, int64_t rows,
                               int64_t half, int64_t groups, int64_t slice) {
  __shared__ float totals[MOST_WARPS][ROWS * TOKENS];
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
  const int eighth = lane / 4, quarter = lane % 4;
  const int64_t slices = (groups + slice - 1) / slice;
  const int64_t row_tiles = (rows + ROWS - 1) / ROWS, token_tiles = (tokens + TOKENS - 1) / TOKENS;
  const int64_t half_blocks = (half + GROUP - 1) / GROUP;

  for (int64_t unit = blockIdx.x; unit < row_tiles * token_tiles; unit += gridDim.x) {
    const int64_t row = unit % row_tiles * ROWS, token = unit / row_tiles * TOKENS;
    const int64_t upper = row + eighth, lower = upper + 8, own_token = token + eighth;
    auto scale_at = [&](int64_t r, int64_t t, int64_t group) {
      if (r >= rows || t >= tokens) return 0.0f;
      const int64_t block = r < half ? r / GROUP : half_blocks + (r - half) / GROUP;
      return __fmul_rn(w_scale[block * groups + group], x_scale[t * groups + group]);
    };

    float value = 0.0f;  // of the element that is this thread's at the end
    for (int64_t base = 0; base < slices; base += warps) {
      float total[4] = {};
      const int64_t first = (base + warp) * slice;
      const int64_t last = first + slice < groups ? first + slice : groups;
      for (int64_t group = first; group < last; group++) {
        float dot[4] = {};
#pragma unroll
        for (int step = 0; step < GROUP / 64; step++) {
          // A lane holds 16 neighbours of K; the first eight are for one mma, the others for the next.
          const int64_t at = group * GROUP + step * 64 + quarter * 16;
          const int64_t k = groups * GROUP;
          const uint4 a = sixteen_codes(w + upper * k + at, upper < rows);
          const uint4 a8 = sixteen_codes(w + lower * k + at, lower < rows);
          const uint4 b = sixteen_codes(x + own_token * k + at, own_token < tokens);
          mma(dot, a.x, a8.x, a.y, a8.y, b.x, b.y);
          mma(dot, a.z, a8.z, a.w, a8.w, b.z, b.w);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const float scale =
              scale_at(i / 2 == 0 ? upper : lower, token + quarter * 2 + i % 2, group);
          total[i] = __fmaf_rn(dot[i], scale, total[i]);
        }
      }
#pragma unroll
      for (int i = 0; i < 4; i++) {
        totals[warp][(eighth + i / 2 * 8) * TOKENS + quarter * 2 + i % 2] = total[i];
      }
      __syncthreads();
      if (threadIdx.x < ROWS * TOKENS) {
        for (int other = 0; other < warps && base + other < slices; other++) {
          value = __fadd_rn(value, totals[other][threadIdx.x]);
        }
      }
      __syncthreads();
    }
    const int64_t r = row + threadIdx.x / TOKENS, t = token + threadIdx.x % TOKENS;
    if (threadIdx.x < ROWS * TOKENS && r < rows && t < tokens) sums[t * rows + r] = value;
  }
}

__device__ inline float lower_of(float a, float b, bool keeps_nan) {
  return keeps_nan && (isnan(a) || isnan(b)) ? __uint_as_float(0x7fffffffu) : fminf(a, b);
}

__device__ inline float larger_of(float a, float b, bool keeps_nan) {
  return keeps_nan && (isnan(a) || isnan(b)) ? __uint_as_float(0x7fffffffu) : fmaxf(a, b);
}

// sums: [tokens, 2 * inter], gate's columns first.
__global__ void swiglu_kernel(const float* sums, __nv_bfloat16* gates, __nv_bfloat16* ups,
                              __nv_bfloat16* act, int64_t tokens, int64_t inter, Swiglu rule) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < tokens * inter;
       i += stride) {
    const int64_t token = i / inter, column = i % inter;
    gates[i] = narrow<__nv_bfloat16>(sums[token * 2 * inter + column]);
    ups[i] = narrow<__nv_bfloat16>(sums[(token * 2 + 1) * inter + column]);
    float gate = widen(gates[i]), up = widen(ups[i]);
    if (rule.has_limit) {
      gate = lower_of(gate, rule.gate_limit, rule.keeps_nan);
      up = larger_of(lower_of(up, rule.up_limit, rule.keeps_nan), -rule.up_limit, rule.keeps_nan);
    }
    if (rule.adds_zero) up = __fadd_rn(up, 0.0f);
    float silu = __fdiv_rn(gate, __fadd_rn(1.0f, expf(-gate)));
    if (rule.rounds_silu) silu = widen(narrow<__nv_bfloat16>(silu));
    act[i] = narrow<__nv_bfloat16>(__fmul_rn(silu, up));
  }
}

__global__ void store_kernel(const float* sums, __nv_bfloat16* out, int64_t count) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    out[i] = narrow<__nv_bfloat16>(sums[i]);
  }
}

void quantize(const Buffer& x, const Buffer& codes, const Buffer& scales, int64_t tokens,
              int64_t k, const Rule& rule) {
  const int64_t groups = ceil_div(k, GROUP);
  if (tokens * groups == 0) return;
  quantize_kernel<<<blocks_for(tokens * groups, 4), 4 * WARP>>>(
      x.as<__nv_bfloat16>(), codes.as<uint8_t>(), scales.as<float>(), tokens, k, groups, rule);
  finish("block_scaled_mlp's quantiser");
}

void project(const Buffer& x, const Buffer& x_scale, const Buffer& w, const Buffer& w_scale,
             const Buffer& sums, int64_t tokens, int64_t rows, int64_t half, int64_t k,
             int64_t slice) {
  if (tokens * rows == 0) return;
  const int64_t groups = ceil_div(k, GROUP);
  const int64_t slices = ceil_div(groups, slice);
  // 4 warps hold a thread for each of a tile's 128 elements.
  const int warps = slices < 4 ? 4 : slices > MOST_WARPS ? MOST_WARPS : static_cast<int>(slices);
  project_kernel<<<blocks_for(ceil_div(rows, ROWS) * ceil_div(tokens, TOKENS), 1), warps * WARP>>>(
      x.as<uint8_t>(), x_scale.as<float>(), w.as<uint8_t>(), w_scale.as<float>(),
      sums.as<float>(), tokens, rows, half, groups, slice);
  finish("block_scaled_mlp's projection");
}

}  // namespace
}  // namespace refkern

struct MlpInputs {
  const void *x, *w13, *w2;             // bfloat16; e4m3 codes, K and inter filled up to 128s by 0
  const float *w13_scale, *w2_scale;    // [2 * inter blocks, K blocks], [hidden blocks, inter blocks]
  int64_t tokens, k, inter, hidden;
  int64_t slice;                        // groups whose sum is begun anew
  float amax_floor, scale_floor, gate_limit, up_limit;
  int power_of_two, scale_by_product, code_by_quotient, clamp;
  int has_limit, keeps_nan, rounds_silu, adds_zero;
};

struct MlpOutputs {
  uint8_t* x_codes;  // [tokens, K blocks * 128]
  float *x_scales, *gate_up_sums;
  void *gate, *up, *act;
  uint8_t* act_codes;  // [tokens, inter blocks * 128]
  float *act_scales, *down_sums;
  void* out;
};

extern "C" const char* refkern_block_scaled_mlp(const MlpInputs* in, const MlpOutputs* out) {
  using namespace refkern;
  return guarded([&] {
    if (in->slice < 1) throw std::runtime_error("a slice has a group at least");
    const int64_t tokens = in->tokens, k = in->k, inter = in->inter, hidden = in->hidden;
    const int64_t k_groups = ceil_div(k, GROUP), inter_groups = ceil_div(inter, GROUP);
    const Rule rule{in->amax_floor, in->scale_floor, in->power_of_two != 0,
                    in->scale_by_product != 0, in->code_by_quotient != 0, in->clamp != 0};
    const Swiglu swiglu{in->has_limit != 0, in->gate_limit, in->up_limit, in->keeps_nan != 0,
                        in->rounds_silu != 0, in->adds_zero != 0};
    const size_t narrow_bytes = tokens * inter * sizeof(__nv_bfloat16);

    Buffer x(in->x, tokens * k * sizeof(__nv_bfloat16));
    Buffer w13(in->w13, 2 * inter * k_groups * GROUP), w2(in->w2, hidden * inter_groups * GROUP);
    Buffer w13_scale(in->w13_scale, 2 * inter_groups * k_groups * sizeof(float));
    Buffer w2_scale(in->w2_scale, ceil_div(hidden, GROUP) * inter_groups * sizeof(float));
    Buffer x_codes(tokens * k_groups * GROUP), x_scales(tokens * k_groups * sizeof(float));
    Buffer gate_up_sums(tokens * 2 * inter * sizeof(float));
    Buffer gate(narrow_bytes), up(narrow_bytes), act(narrow_bytes);
    Buffer act_codes(tokens * inter_groups * GROUP);
    Buffer act_scales(tokens * inter_groups * sizeof(float));
    Buffer down_sums(tokens * hidden * sizeof(float));
    Buffer result(tokens * hidden * sizeof(__nv_bfloat16));

    quantize(x, x_codes, x_scales, tokens, k, rule);
    project(x_codes, x_scales, w13, w13_scale, gate_up_sums, tokens, 2 * inter, inter, k,
            in->slice);
    if (tokens * inter > 0) {
      swiglu_kernel<<<blocks_for(tokens * inter, 256), 256>>>(
          gate_up_sums.as<float>(), gate.as<__nv_bfloat16>(), up.as<__nv_bfloat16>(),
          act.as<__nv_bfloat16>(), tokens, inter, swiglu);
      finish("block_scaled_mlp's SwiGLU");
    }
    quantize(act, act_codes, act_scales, tokens, inter, rule);
    project(act_codes, act_scales, w2, w2_scale, down_sums, tokens, hidden, hidden, inter,
            in->slice);
    if (tokens * hidden > 0) {
      store_kernel<<<blocks_for(tokens * hidden, 256), 256>>>(
          down_sums.as<float>(), result.as<__nv_bfloat16>(), tokens * hidden);
      finish("block_scaled_mlp's store");
    }

    x_codes.copy_to(out->x_codes);
    x_scales.copy_to(out->x_scales);
    gate_up_sums.copy_to(out->gate_up_sums);
    gate.copy_to(out->gate);
    up.copy_to(out->up);
    act.copy_to(out->act);
    act_codes.copy_to(out->act_codes);
    act_scales.copy_to(out->act_scales);
    down_sums.copy_to(out->down_sums);
    result.copy_to(out->out);
  });
}
