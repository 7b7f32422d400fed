// Which device the calls of this thread are for.

#include "common.cuh"

extern "C" const char* refkern_use_device(int device) {
  return refkern::guarded([&] { refkern::check(cudaSetDevice(device), "cudaSetDevice"); });
}
