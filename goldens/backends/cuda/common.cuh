// What the four kernels share: widening and narrowing, buffers, errors.
//
// Every rounding is an intrinsic (__fmul_rn, __fadd_rn, __fmaf_rn, ...), so that the compiler
// contracts nothing.

#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <stdexcept>
#include <string>

namespace refkern {

constexpr unsigned ALL_LANES = 0xffffffffu;
constexpr int WARP = 32;
//: blocks along the first axis of a grid; kernels stride over what is left
constexpr int64_t MOST_BLOCKS = 1 << 20;

// ------------------------------------------------------------------------------------- numbers

__device__ inline float widen(float x) { return x; }
__device__ inline float widen(__half x) { return __half2float(x); }
__device__ inline float widen(__nv_bfloat16 x) { return __bfloat162float(x); }

template <typename T>
__device__ T narrow(float x);
template <>
__device__ inline float narrow<float>(float x) { return x; }
template <>
__device__ inline __half narrow<__half>(float x) { return __float2half_rn(x); }
template <>
__device__ inline __nv_bfloat16 narrow<__nv_bfloat16>(float x) { return __float2bfloat16_rn(x); }

// 2^x and 1/sqrt(x) by the special-function unit alone, subnormals flushed.
__device__ inline float ex2_approx_ftz(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

__device__ inline float rsqrt_approx_ftz(float x) {
  float result;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// The XOR butterfly over `lanes` neighbours, a power of two up to 32: half the lanes first.
__device__ inline float butterfly(float sum, int lanes) {
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    sum = __fadd_rn(sum, __shfl_xor_sync(ALL_LANES, sum, distance));
  }
  return sum;
}

// ------------------------------------------------------------------------------------- the host

inline void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) {
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorName(status) + ", " +
                             cudaGetErrorString(status));
  }
}

// Device memory with the bytes of a host array.
class Buffer {
 public:
  explicit Buffer(size_t bytes) : bytes_(bytes) {
    check(cudaMalloc(&memory_, bytes > 0 ? bytes : 1), "cudaMalloc");
    // All ones is a NaN in every float format: what a kernel does not write shows.
    check(cudaMemset(memory_, 0xff, bytes), "cudaMemset");
  }
  Buffer(const void* host, size_t bytes) : Buffer(bytes) {
    if (bytes > 0) {
      check(cudaMemcpy(memory_, host, bytes, cudaMemcpyHostToDevice), "copy to the device");
    }
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { cudaFree(memory_); }

  void copy_to(void* host) const {
    if (bytes_ > 0) {
      check(cudaMemcpy(host, memory_, bytes_, cudaMemcpyDeviceToHost), "copy from the device");
    }
  }
  template <typename T>
  T* as() const {
    return static_cast<T*>(memory_);
  }

 private:
  void* memory_ = nullptr;
  size_t bytes_;
};

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

inline unsigned blocks_for(int64_t units, int64_t in_a_block) {
  const int64_t blocks = ceil_div(units, in_a_block);
  return static_cast<unsigned>(blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS);
}

// After a launch: what the launch refused, then what the kernel ran into.
inline void finish(const char* kernel) {
  check(cudaGetLastError(), kernel);
  check(cudaDeviceSynchronize(), kernel);
}

// Runs the body; nullptr, or what went wrong, until the next call of this thread.
template <typename Body>
const char* guarded(Body body) {
  static thread_local std::string failure;
  try {
    body();
    return nullptr;
  } catch (const std::exception& error) {
    failure = error.what();
    return failure.c_str();
  }
}

// Calls the body with a value of the element type: 0 bfloat16, 1 float16, 2 float32.
template <typename Body>
void with_type(int type, Body body) {
  switch (type) {
    case 0: return body(__nv_bfloat16{});
    case 1: return body(__half{});
    case 2: return body(float{});
    default: throw std::runtime_error("unknown element type " + std::to_string(type));
  }
}

}  // namespace refkern
