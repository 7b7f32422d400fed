// NOT RUN: written for macOS 14 and an Apple GPU, of which none was at hand.  Documentation only.
//
// gated_group_rmsnorm on Metal as a program for `refkern verify --backend exec:PROGRAM --policy metal`:
//
//     swiftc -O GatedGroupRMSNorm.swift -o gated_group_rmsnorm
//     refkern verify refkern-goldens/gated_group_rmsnorm --backend exec:./gated_group_rmsnorm --policy metal
//
// float32 cases only, so that nothing but the kernel is on the page; examples/exec_cpp has the
// narrow formats.  One simdgroup of 32 lanes a row and group, as recipe modular-apple.
import Foundation
import Metal

let kernelSource = """
#include <metal_stdlib>
using namespace metal;
struct Params { uint width; uint groupSize; float eps; uint gated; };
kernel void norm(device const float* y [[buffer(0)]], device const float* gate [[buffer(1)]],
                 device const float* weight [[buffer(2)]], device float* out [[buffer(3)]],
                 constant Params& p [[buffer(4)]], uint group [[threadgroup_position_in_grid]],
                 uint lane [[thread_index_in_simdgroup]]) {
    uint start = group * p.groupSize;
    float sum = 0;
    for (uint j = lane; j < p.groupSize; j += 32) {
        float x = y[start + j];
        if (p.gated) { float g = gate[start + j]; x *= g * (1.0f / (1.0f + precise::exp(-g))); }
        out[start + j] = x;
        sum = fma(x, x, sum);
    }
    for (ushort step = 16; step > 0; step /= 2) sum += simd_shuffle_xor(sum, step);
    float inverse = precise::rsqrt(sum / float(p.groupSize) + p.eps);
    for (uint j = lane; j < p.groupSize; j += 32)
        out[start + j] = weight[(start + j) % p.width] * (out[start + j] * inverse);
}
"""
struct Params { var width: UInt32; var groupSize: UInt32; var eps: Float; var gated: UInt32 }

func fail(_ text: String) -> Never {
    FileHandle.standardError.write((text + "\n").data(using: .utf8)!)
    exit(1)
}

// Read IN.safetensors: length, JSON header, data.
guard CommandLine.arguments.count == 3 else { fail("usage: IN.safetensors OUT.safetensors") }
let file = try Data(contentsOf: URL(fileURLWithPath: CommandLine.arguments[1]))
let length = Int(file.prefix(8).enumerated().reduce(UInt64(0)) { $0 | UInt64($1.element) << (8 * $1.offset) })
let header = try JSONSerialization.jsonObject(with: file[8..<8 + length]) as! [String: [String: Any]]
let told = try JSONSerialization.jsonObject(
    with: (header["__metadata__"]!["refkern"] as! String).data(using: .utf8)!) as! [String: Any]
guard told["op"] as? String == "gated_group_rmsnorm" else { fail("op \(told["op"]!) is not supported") }
let params = told["params"] as! [String: Any]
let shape = header["y"]!["shape"] as! [Int]

let device = MTLCreateSystemDefaultDevice()!
func buffer(_ name: String) -> MTLBuffer {
    guard header[name]!["dtype"] as? String == "F32" else { fail("\(name): float32 only") }
    let at = header[name]!["data_offsets"] as! [Int]
    let bytes = file.subdata(in: 8 + length + at[0]..<8 + length + at[1])
    return bytes.withUnsafeBytes { device.makeBuffer(bytes: $0.baseAddress!, length: bytes.count)! }
}

// .fastMathEnabled = false: fast math is another policy (metal-fast).
let options = MTLCompileOptions()
options.fastMathEnabled = false
let library = try device.makeLibrary(source: kernelSource, options: options)
let pipeline = try device.makeComputePipelineState(function: library.makeFunction(name: "norm")!)
let size = params["group_size"] as! Int
var p = Params(width: UInt32(shape[1]), groupSize: UInt32(size),
               eps: (params["eps"] as! NSNumber).floatValue, gated: header["gate"] == nil ? 0 : 1)
let y = buffer("y"), weight = buffer("weight")
let gate = header["gate"] == nil ? y : buffer("gate")
let out = device.makeBuffer(length: y.length)!
let commands = device.makeCommandQueue()!.makeCommandBuffer()!
let encoder = commands.makeComputeCommandEncoder()!
encoder.setComputePipelineState(pipeline)
for (index, b) in [y, gate, weight, out].enumerated() { encoder.setBuffer(b, offset: 0, index: index) }
encoder.setBytes(&p, length: MemoryLayout<Params>.size, index: 4)
encoder.dispatchThreadgroups(MTLSize(width: shape[0] * shape[1] / size, height: 1, depth: 1),
                             threadsPerThreadgroup: MTLSize(width: 32, height: 1, depth: 1))
encoder.endEncoding()
commands.commit()
commands.waitUntilCompleted()
if let error = commands.error { fail("\(error)") }

// Write OUT.safetensors.
let text = "{\"out\":{\"dtype\":\"F32\",\"shape\":[\(shape[0]),\(shape[1])],\"data_offsets\":[0,\(out.length)]}}"
var result = withUnsafeBytes(of: UInt64(text.utf8.count).littleEndian) { Data($0) }
result.append(text.data(using: .utf8)!)
result.append(Data(bytes: out.contents(), count: out.length))
try result.write(to: URL(fileURLWithPath: CommandLine.arguments[2]))
