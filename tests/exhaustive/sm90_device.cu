// An NVIDIA Hopper GPU's own answers, for tests/exhaustive/sm90_device.py to compare with refkern.
//
//   nvcc -O2 -gencode=arch=compute_90a,code=sm_90a -o sm90_device sm90_device.cu
//   sm90_device hashes FUNCTION              512 lines "block hash", all 2^32 inputs
//   sm90_device dump FUNCTION BLOCK FILE     the 2^23 outputs of one block, uint32 each
//   sm90_device mma KIND TILES A B C D       one instruction per tile, files of raw bits
//
// A function of one argument runs over every float32: block = sign and exponent, 512 binades of
// 2^23 mantissas.  A function of two runs over pairs from a counter: pair i is the two halves of
// mix(i).  A block's hash is the sum modulo 2^64 of mix(i << 32 | output) over its indices i, where
// mix is splitmix64's finaliser: it does not depend on the order of the threads.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#define CHECK(call)                                                             \
    do {                                                                        \
        cudaError_t status = (call);                                            \
        if (status != cudaSuccess) {                                            \
            std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(status)); \
            std::exit(1);                                                       \
        }                                                                       \
    } while (0)

__host__ __device__ inline uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

// ---------------------------------------------------------------------------------- functions

#define PTX_UNARY(name, instruction)                                            \
    struct name {                                                               \
        static __device__ uint32_t at(uint32_t i) {                             \
            float y;                                                            \
            asm volatile(instruction " %0, %1;" : "=f"(y) : "f"(__uint_as_float(i))); \
            return __float_as_uint(y);                                          \
        }                                                                       \
    };

#define CUDA_UNARY(name, expression)                                            \
    struct name {                                                               \
        static __device__ uint32_t at(uint32_t i) {                             \
            float x = __uint_as_float(i);                                       \
            return __float_as_uint(expression);                                 \
        }                                                                       \
    };

#define PTX_BINARY(name, instruction)                                           \
    struct name {                                                               \
        static __device__ uint32_t at(uint32_t i) {                             \
            uint64_t pair = mix(i);                                             \
            float a = __uint_as_float(uint32_t(pair));                          \
            float b = __uint_as_float(uint32_t(pair >> 32));                    \
            float y;                                                            \
            asm volatile(instruction " %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b)); \
            return __float_as_uint(y);                                          \
        }                                                                       \
    };

PTX_UNARY(ex2_approx, "ex2.approx.f32")
PTX_UNARY(ex2_approx_ftz, "ex2.approx.ftz.f32")
PTX_UNARY(rcp_approx, "rcp.approx.f32")
PTX_UNARY(rcp_approx_ftz, "rcp.approx.ftz.f32")
PTX_UNARY(rsqrt_approx, "rsqrt.approx.f32")
PTX_UNARY(rsqrt_approx_ftz, "rsqrt.approx.ftz.f32")
PTX_UNARY(sqrt_approx, "sqrt.approx.f32")
PTX_UNARY(sqrt_approx_ftz, "sqrt.approx.ftz.f32")
PTX_UNARY(lg2_approx, "lg2.approx.f32")
PTX_UNARY(lg2_approx_ftz, "lg2.approx.ftz.f32")
CUDA_UNARY(expf_, expf(x))
CUDA_UNARY(fast_expf, __expf(x))
CUDA_UNARY(fast_logf, __logf(x))
CUDA_UNARY(rsqrtf_, rsqrtf(x))
PTX_BINARY(div_full, "div.full.f32")
PTX_BINARY(div_approx, "div.approx.f32")
PTX_BINARY(fmin_, "min.f32")
PTX_BINARY(fmax_, "max.f32")

struct fast_expf_ftz {
    static __device__ uint32_t at(uint32_t i) {
        float y;
        asm volatile(
            "{ .reg .f32 t; mul.rn.f32 t, %1, 0f3FB8AA3B; ex2.approx.ftz.f32 %0, t; }"
            : "=f"(y) : "f"(__uint_as_float(i)));
        return __float_as_uint(y);
    }
};

#define PTX_CONVERT_16(name, instruction)                                       \
    struct name {                                                               \
        static __device__ uint32_t at(uint32_t i) {                             \
            uint16_t y;                                                         \
            asm volatile(instruction " %0, %1;" : "=h"(y) : "f"(__uint_as_float(i))); \
            return y;                                                           \
        }                                                                       \
    };

// The lower byte is the conversion of the second operand.
#define PTX_CONVERT_8(name, instruction)                                        \
    struct name {                                                               \
        static __device__ uint32_t at(uint32_t i) {                             \
            uint16_t y;                                                         \
            asm volatile(instruction " %0, %1, %2;"                             \
                         : "=h"(y) : "f"(0.0f), "f"(__uint_as_float(i)));       \
            return y & 0xff;                                                    \
        }                                                                       \
    };

PTX_CONVERT_16(cvt_bf16, "cvt.rn.bf16.f32")
PTX_CONVERT_16(cvt_f16, "cvt.rn.f16.f32")
PTX_CONVERT_8(cvt_e4m3, "cvt.rn.satfinite.e4m3x2.f32")
PTX_CONVERT_8(cvt_e5m2, "cvt.rn.satfinite.e5m2x2.f32")

constexpr uint32_t BLOCKS = 512, BLOCK_SIZE = 1u << 23;

template <typename Function>
__global__ void hash_block(uint64_t* hashes) {
    uint32_t block = blockIdx.y;
    uint64_t sum = 0;
    for (uint32_t k = blockIdx.x * blockDim.x + threadIdx.x; k < BLOCK_SIZE;
         k += gridDim.x * blockDim.x) {
        uint32_t i = block * BLOCK_SIZE + k;
        sum += mix(uint64_t(i) << 32 | Function::at(i));
    }
    atomicAdd(reinterpret_cast<unsigned long long*>(&hashes[block]), (unsigned long long)sum);
}

template <typename Function>
__global__ void write_block(uint32_t block, uint32_t* out) {
    uint32_t k = blockIdx.x * blockDim.x + threadIdx.x;
    out[k] = Function::at(block * BLOCK_SIZE + k);
}

template <typename Function>
void hashes() {
    uint64_t* device;
    CHECK(cudaMalloc(&device, BLOCKS * sizeof(uint64_t)));
    CHECK(cudaMemset(device, 0, BLOCKS * sizeof(uint64_t)));
    hash_block<Function><<<dim3(64, BLOCKS), 256>>>(device);
    CHECK(cudaGetLastError());
    std::vector<uint64_t> host(BLOCKS);
    CHECK(cudaMemcpy(host.data(), device, BLOCKS * sizeof(uint64_t), cudaMemcpyDeviceToHost));
    for (uint32_t block = 0; block < BLOCKS; block++)
        std::printf("%03x %016llx\n", block, (unsigned long long)host[block]);
}

void write_file(const char* path, const void* data, size_t bytes) {
    FILE* file = std::fopen(path, "wb");
    if (!file || std::fwrite(data, 1, bytes, file) != bytes || std::fclose(file)) {
        std::fprintf(stderr, "cannot write %s\n", path);
        std::exit(1);
    }
}

std::vector<uint8_t> read_file(const char* path, size_t bytes) {
    std::vector<uint8_t> data(bytes);
    FILE* file = std::fopen(path, "rb");
    if (!file || std::fread(data.data(), 1, bytes, file) != bytes) {
        std::fprintf(stderr, "%s does not hold %zu bytes\n", path, bytes);
        std::exit(1);
    }
    std::fclose(file);
    return data;
}

template <typename Function>
void dump(uint32_t block, const char* path) {
    uint32_t* device;
    CHECK(cudaMalloc(&device, BLOCK_SIZE * sizeof(uint32_t)));
    write_block<Function><<<BLOCK_SIZE / 256, 256>>>(block, device);
    CHECK(cudaGetLastError());
    std::vector<uint32_t> host(BLOCK_SIZE);
    CHECK(cudaMemcpy(host.data(), device, BLOCK_SIZE * 4, cudaMemcpyDeviceToHost));
    write_file(path, host.data(), BLOCK_SIZE * 4);
}

struct Named {
    const char* name;
    void (*hashes)();
    void (*dump)(uint32_t, const char*);
};

#define NAMED(name, type) {name, hashes<type>, dump<type>}
const Named FUNCTIONS[] = {
    NAMED("ex2_approx", ex2_approx), NAMED("ex2_approx_ftz", ex2_approx_ftz),
    NAMED("rcp_approx", rcp_approx), NAMED("rcp_approx_ftz", rcp_approx_ftz),
    NAMED("rsqrt_approx", rsqrt_approx), NAMED("rsqrt_approx_ftz", rsqrt_approx_ftz),
    NAMED("sqrt_approx", sqrt_approx), NAMED("sqrt_approx_ftz", sqrt_approx_ftz),
    NAMED("lg2_approx", lg2_approx), NAMED("lg2_approx_ftz", lg2_approx_ftz),
    NAMED("expf", expf_), NAMED("fast_expf", fast_expf), NAMED("fast_expf_ftz", fast_expf_ftz),
    NAMED("fast_logf", fast_logf), NAMED("rsqrtf", rsqrtf_),
    NAMED("cvt_bf16", cvt_bf16), NAMED("cvt_f16", cvt_f16),
    NAMED("cvt_e4m3", cvt_e4m3), NAMED("cvt_e5m2", cvt_e5m2),
    NAMED("div_full", div_full), NAMED("div_approx", div_approx),
    NAMED("fmin", fmin_), NAMED("fmax", fmax_),
};

// ------------------------------------------------------------------------------- tensor cores
//
// Every fragment is the same in bytes: thread 4g + q holds, of row g (and g + 8) of A and of row g
// of B, the bytes 4q..4q+3, and where a row has 32 bytes also 16+4q..16+4q+3.  Of C and D it holds
// the columns 2q and 2q+1 of rows g and g + 8.

__device__ uint32_t word(const uint8_t* row, int bytes) {
    return *reinterpret_cast<const uint32_t*>(row + bytes);
}

#define MMA_SYNC_32(name, instruction)                                          \
    struct name {                                                               \
        static constexpr int ROWS = 16, ROW_BYTES = 32, C_BYTES = 4, WARPS = 1; \
        static __device__ void run(const uint32_t* a, const uint32_t* b, uint64_t, float* d) { \
            asm volatile(instruction " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
                         : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])       \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1])); \
        }                                                                       \
    };

#define MMA_SYNC_16(name, instruction)                                          \
    struct name {                                                               \
        static constexpr int ROWS = 16, ROW_BYTES = 16, C_BYTES = 4, WARPS = 1; \
        static __device__ void run(const uint32_t* a, const uint32_t* b, uint64_t, float* d) { \
            asm volatile(instruction " {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};" \
                         : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])       \
                         : "r"(a[0]), "r"(a[1]), "r"(b[0]));                    \
        }                                                                       \
    };

MMA_SYNC_32(mma_e4m3, "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32")
MMA_SYNC_32(mma_e5m2, "mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e5m2.f32")
MMA_SYNC_32(mma_bf16_k16, "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32")
MMA_SYNC_32(mma_f16_k16, "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32")
MMA_SYNC_32(mma_tf32_k8, "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32")
MMA_SYNC_16(mma_bf16_k8, "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32")
MMA_SYNC_16(mma_f16_k8, "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32")
MMA_SYNC_16(mma_tf32_k4, "mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32")

struct mma_f16acc {
    static constexpr int ROWS = 16, ROW_BYTES = 32, C_BYTES = 2, WARPS = 1;
    static __device__ void run(const uint32_t* a, const uint32_t* b, uint64_t, float* d) {
        uint32_t* packed = reinterpret_cast<uint32_t*>(d);
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0,%1}, {%2,%3,%4,%5}, {%6,%7}, {%0,%1};"
            : "+r"(packed[0]), "+r"(packed[1])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
};

// A from registers, B from shared memory: two core matrices of 8 rows by 16 bytes, unswizzled.
#define WGMMA(name, instruction, transpose)                                     \
    struct name {                                                               \
        static constexpr int ROWS = 64, ROW_BYTES = 32, C_BYTES = 4, WARPS = 4; \
        static __device__ void run(const uint32_t* a, const uint32_t*, uint64_t b, float* d) { \
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");             \
            asm volatile("{ .reg .pred p; setp.ne.b32 p, 1, 0; " instruction    \
                         " {%0,%1,%2,%3}, {%4,%5,%6,%7}, %8, p, 1, 1" transpose "; }" \
                         : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])       \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)); \
            asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");      \
            asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");      \
        }                                                                       \
    };

WGMMA(wgmma_bf16, "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16", ", 0")
WGMMA(wgmma_f16, "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16", ", 0")
WGMMA(wgmma_tf32, "wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32", "")
WGMMA(wgmma_e4m3, "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3", "")
WGMMA(wgmma_e5m2, "wgmma.mma_async.sync.aligned.m64n8k32.f32.e5m2.e5m2", "")

template <typename Kind>
__global__ void run_tiles(const uint8_t* A, const uint8_t* B, const uint8_t* C, uint8_t* D) {
    constexpr int ROW = Kind::ROW_BYTES, COLUMNS = 8;
    A += size_t(blockIdx.x) * Kind::ROWS * ROW;
    B += size_t(blockIdx.x) * COLUMNS * ROW;
    C += size_t(blockIdx.x) * Kind::ROWS * COLUMNS * Kind::C_BYTES;
    D += size_t(blockIdx.x) * Kind::ROWS * COLUMNS * Kind::C_BYTES;
    __shared__ alignas(128) uint8_t shared[COLUMNS * 32];
    for (int i = threadIdx.x; i < COLUMNS * ROW; i += blockDim.x) {
        int row = i / ROW, byte = i % ROW;
        shared[byte / 16 * 128 + row * 16 + byte % 16] = B[i];
    }
    asm volatile("fence.proxy.async;" ::: "memory");
    __syncthreads();
    // Start address and both offsets (128 bytes) in units of 16 bytes.
    uint64_t address = (uint64_t)__cvta_generic_to_shared(shared);
    uint64_t descriptor = (address & 0x3ffff) >> 4 | uint64_t(8) << 16 | uint64_t(8) << 32;

    int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
    int row = warp * 16 + g;
    uint32_t a[4] = {word(A + row * ROW, 4 * q), word(A + (row + 8) * ROW, 4 * q), 0, 0};
    uint32_t b[2] = {word(B + g * ROW, 4 * q), 0};
    if (ROW == 32) {
        a[2] = word(A + row * ROW, 16 + 4 * q);
        a[3] = word(A + (row + 8) * ROW, 16 + 4 * q);
        b[1] = word(B + g * ROW, 16 + 4 * q);
    }
    float d[4];
    int upper = (row * COLUMNS + 2 * q) * Kind::C_BYTES;
    int lower = ((row + 8) * COLUMNS + 2 * q) * Kind::C_BYTES;
    memcpy(d, C + upper, 2 * Kind::C_BYTES);
    memcpy(reinterpret_cast<uint8_t*>(d) + 2 * Kind::C_BYTES, C + lower, 2 * Kind::C_BYTES);
    Kind::run(a, b, descriptor, d);
    memcpy(D + upper, d, 2 * Kind::C_BYTES);
    memcpy(D + lower, reinterpret_cast<uint8_t*>(d) + 2 * Kind::C_BYTES, 2 * Kind::C_BYTES);
}

uint8_t* upload(const char* path, size_t bytes) {
    std::vector<uint8_t> host = read_file(path, bytes);
    uint8_t* device;
    CHECK(cudaMalloc(&device, bytes));
    CHECK(cudaMemcpy(device, host.data(), bytes, cudaMemcpyHostToDevice));
    return device;
}

template <typename Kind>
void tiles(uint32_t count, char** paths) {
    size_t outputs = size_t(count) * Kind::ROWS * 8 * Kind::C_BYTES;
    uint8_t* a = upload(paths[0], size_t(count) * Kind::ROWS * Kind::ROW_BYTES);
    uint8_t* b = upload(paths[1], size_t(count) * 8 * Kind::ROW_BYTES);
    uint8_t* c = upload(paths[2], outputs);
    uint8_t* d;
    CHECK(cudaMalloc(&d, outputs));
    run_tiles<Kind><<<count, Kind::WARPS * 32>>>(a, b, c, d);
    CHECK(cudaGetLastError());
    std::vector<uint8_t> host(outputs);
    CHECK(cudaMemcpy(host.data(), d, outputs, cudaMemcpyDeviceToHost));
    write_file(paths[3], host.data(), outputs);
}

struct NamedKind {
    const char* name;
    void (*tiles)(uint32_t, char**);
};

const NamedKind KINDS[] = {
    {"mma.m16n8k32.e4m3", tiles<mma_e4m3>}, {"mma.m16n8k32.e5m2", tiles<mma_e5m2>},
    {"mma.m16n8k16.bf16", tiles<mma_bf16_k16>}, {"mma.m16n8k8.bf16", tiles<mma_bf16_k8>},
    {"mma.m16n8k16.f16", tiles<mma_f16_k16>}, {"mma.m16n8k8.f16", tiles<mma_f16_k8>},
    {"mma.m16n8k16.f16.f16acc", tiles<mma_f16acc>},
    {"mma.m16n8k8.tf32", tiles<mma_tf32_k8>}, {"mma.m16n8k4.tf32", tiles<mma_tf32_k4>},
    {"wgmma.k16.bf16", tiles<wgmma_bf16>}, {"wgmma.k16.f16", tiles<wgmma_f16>},
    {"wgmma.k8.tf32", tiles<wgmma_tf32>},
    {"wgmma.k32.e4m3", tiles<wgmma_e4m3>}, {"wgmma.k32.e5m2", tiles<wgmma_e5m2>},
};

int main(int count, char** arguments) {
    const char* what = count > 2 ? arguments[1] : "";
    for (const Named& function : FUNCTIONS) {
        if (count < 3 || std::strcmp(function.name, arguments[2])) continue;
        if (!std::strcmp(what, "hashes")) return function.hashes(), 0;
        if (!std::strcmp(what, "dump") && count == 5)
            return function.dump(std::strtoul(arguments[3], nullptr, 16), arguments[4]), 0;
    }
    for (const NamedKind& kind : KINDS)
        if (!std::strcmp(what, "mma") && count == 8 && !std::strcmp(kind.name, arguments[2]))
            return kind.tiles(std::strtoul(arguments[3], nullptr, 10), arguments + 4), 0;
    std::fprintf(stderr, "see the comment at the head of sm90_device.cu\n");
    return 2;
}
