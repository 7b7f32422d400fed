// Two norms as a program for `refkern verify --backend exec:PROGRAM`.  Node only, no package.
//
//     refkern verify refkern-goldens --backend "exec:node kernels.mjs"
//     node kernels.mjs EXPORT.safetensors        checks an export by itself, without Python
//
// What WebGPU code in a browser needs: read safetensors, and round where float32 rounds.
import { readFileSync, writeFileSync } from "node:fs";

// ---------------------------------------------------------------- float32 and narrower

const f32 = Math.fround;
const word = new DataView(new ArrayBuffer(8));

function bits(x) {
  word.setFloat32(0, x);
  return word.getUint32(0);
}

function fromBits(u) {
  word.setUint32(0, u);
  return word.getFloat32(0);
}

// One rounding of a * b + c: the product is exact in float64; a sum that is not exact is made odd,
// so that the second rounding, to float32, cannot fall into a tie that the first one made.
function fma(a, b, c) {
  const p = a * b;
  const s = p + c;
  const back = s - p;
  const error = p - (s - back) + (c - back);
  if (error !== 0 && Number.isFinite(error) && Number.isFinite(s)) {
    word.setFloat64(0, s);
    let code = word.getBigUint64(0);
    if (!(code & 1n)) {
      code += error > 0 === s > 0 ? 1n : -1n;
      word.setBigUint64(0, code);
      return f32(word.getFloat64(0));
    }
  }
  return f32(s);
}

const formats = {
  F32: { bytes: 4, read: (v, i) => v.getFloat32(i, true), round: f32,
         write: (v, i, x) => v.setUint32(i, Number.isNaN(x) ? 0x7fc00000 : bits(x), true) },
  BF16: { bytes: 2, read: (v, i) => fromBits(v.getUint16(i, true) * 65536),
          round: (x) => fromBits(bf16(x) * 65536),
          write: (v, i, x) => v.setUint16(i, bf16(x), true) },
  U8: { bytes: 1, read: (v, i) => v.getUint8(i) },
  F16: { bytes: 2, read: (v, i) => fromF16(v.getUint16(i, true)), round: (x) => fromF16(f16(x)),
         write: (v, i, x) => v.setUint16(i, f16(x), true) },
};

function bf16(x) {
  if (Number.isNaN(x)) return 0x7fc0;
  const u = bits(x);
  return Math.floor((u + 0x7fff + ((u >>> 16) & 1)) / 65536);
}

function fromF16(h) {
  const sign = h & 0x8000 ? -1 : 1;
  const exponent = (h >> 10) & 31;
  const mantissa = h & 1023;
  if (exponent === 31) return mantissa ? NaN : sign * Infinity;
  return sign * (exponent ? (1024 + mantissa) * 2 ** (exponent - 25) : mantissa * 2 ** -24);
}

function even(x) {
  const low = Math.floor(x);
  const rest = x - low;
  return rest > 0.5 || (rest === 0.5 && low % 2) ? low + 1 : low;
}

function f16(x) {
  if (Number.isNaN(x)) return 0x7e00;
  const sign = x < 0 || Object.is(x, -0) ? 0x8000 : 0;
  const a = Math.abs(x);
  if (a >= 65520) return sign | 0x7c00;
  if (a < 2 ** -14) return sign | even(a * 2 ** 24);
  const exponent = ((bits(a) >>> 23) & 255) - 127;
  // a carry out of the ten bits raises the exponent field, which is what is wanted
  return sign | (((exponent + 14) << 10) + even(a * 2 ** (10 - exponent)));
}

// ---------------------------------------------------------------- safetensors

function read(path) {
  const file = readFileSync(path);
  const view = new DataView(file.buffer, file.byteOffset, file.byteLength);
  const length = Number(view.getBigUint64(0, true));
  const header = JSON.parse(file.subarray(8, 8 + length).toString("utf8"));
  const told = JSON.parse(header.__metadata__.refkern);
  delete header.__metadata__;
  const tensors = {};
  for (const [name, { dtype, shape, data_offsets: [begin, end] }] of Object.entries(header)) {
    const format = formats[dtype];
    if (!format) throw new Error(`${name} is ${dtype}, which is not supported`);
    const values = new Float32Array((end - begin) / format.bytes);
    values.forEach((_, i) => { values[i] = format.read(view, 8 + length + begin + i * format.bytes); });
    tensors[name] = { dtype, shape, values };
  }
  return { told, tensors };
}

function write(path, tensors) {
  const header = {};
  let end = 0;
  for (const [name, { dtype, shape, values }] of Object.entries(tensors)) {
    const begin = end;
    end += values.length * formats[dtype].bytes;
    header[name] = { dtype, shape, data_offsets: [begin, end] };
  }
  const text = Buffer.from(JSON.stringify(header));
  const file = Buffer.alloc(8 + text.length + end);
  file.writeBigUInt64LE(BigInt(text.length));
  text.copy(file, 8);
  const view = new DataView(file.buffer, file.byteOffset, file.byteLength);
  for (const [name, { dtype, values }] of Object.entries(tensors)) {
    const { bytes, write: put } = formats[dtype];
    const start = 8 + text.length + header[name].data_offsets[0];
    values.forEach((x, i) => put(view, start + i * bytes, x));
  }
  writeFileSync(path, file);
}

// ---------------------------------------------------------------- the kernels

const LANES = 32;
// Math.exp is float64's: rounded to float32 it is correct but for rare ties.
const exp = (x) => f32(Math.exp(x));

// Lanes' sums by the XOR butterfly from half the lanes down to 1.
function butterfly(lane) {
  for (let step = lane.length >> 1; step > 0; step >>= 1)
    for (let l = 0; l < step; l++) lane[l] = lane[l] + lane[l + step];
  return lane[0];
}

// One subgroup: lane L takes x[L], x[L + 32], ... by fma.
function squaresByLanes(x) {
  const lane = new Float32Array(LANES);
  x.forEach((v, j) => { lane[j % LANES] = fma(v, v, lane[j % LANES]); });
  return butterfly(lane);
}

// One subgroup: lane L takes the vectors L, L + lanes, ... of four; no fma.
function squaresByVectors(x) {
  const vectors = x.length / 4;
  const lanes = Math.min(LANES, 2 ** Math.ceil(Math.log2(vectors)));
  const lane = new Float32Array(lanes);
  for (let v = 0; v < vectors; v++) {
    const [a, b, c, d] = x.subarray(4 * v, 4 * v + 4).map((n) => n * n);
    lane[v % lanes] += f32(f32(f32(a + b) + c) + d);
  }
  return butterfly(lane);
}

const rsqrt = (x) => f32(1 / Math.sqrt(x));

// Gate, then norm over groups: recipe modular-apple, and mamba-ssm's single rounding.
function gatedGroupRmsnorm({ y, gate, weight }, { group_size: size, eps }, recipe) {
  const groups = y.shape[1] / size;
  const castBeforeWeight = recipe !== "mamba-ssm";
  const dtype = castBeforeWeight ? y.dtype : "F32";
  const gated = { ...y, dtype: "F32", values: y.values.slice() };
  if (gate)
    gate.values.forEach((g, i) => {
      gated.values[i] = y.values[i] * f32(g * f32(1 / f32(1 + exp(-g))));
    });
  const sums = { dtype: "F32", shape: [y.shape[0], groups], values: new Float32Array(y.shape[0] * groups) };
  const rstd = { ...sums, values: sums.values.slice() };
  const normalized = { ...y, dtype, values: y.values.slice() };
  const out = { ...y, values: y.values.slice() };
  for (let g = 0; g < sums.values.length; g++) {
    sums.values[g] = squaresByLanes(gated.values.subarray(g * size, (g + 1) * size));
    rstd.values[g] = rsqrt(f32(f32(sums.values[g] / size) + f32(eps)));
    for (let i = g * size; i < (g + 1) * size; i++) {
      normalized.values[i] = formats[dtype].round(f32(gated.values[i] * rstd.values[g]));
      const w = weight.values[i % y.shape[1]];
      out.values[i] = formats[y.dtype].round(f32(w * normalized.values[i]));
    }
  }
  return { gated, sum_of_squares: sums, rstd, normalized, out };
}

function sigmoid(z) {
  const e = exp(-Math.abs(z));
  return f32((z >= 0 ? 1 : e) / f32(1 + e));
}

// Norm, then gate: recipe webgpu-subgroup-rows-vec4, and the finishes of fla and Hugging Face.
function gatedRmsnorm({ x, scale, gate }, { epsilon, activation }, recipe) {
  const columns = scale.values.length;
  const rows = x.values.length / columns;
  const { round } = formats[x.dtype];
  const castEach = recipe.startsWith("hf-");
  const out = { ...x, values: x.values.slice() };
  for (let r = 0; r < rows; r++) {
    const row = x.values.subarray(r * columns, (r + 1) * columns);
    const sum = columns % 4 ? squaresByLanes(row) : squaresByVectors(row);
    const inv = rsqrt(f32(f32(sum / columns) + f32(epsilon)));
    for (let j = 0; j < columns; j++) {
      const z = gate.values[r * columns + j];
      const s = sigmoid(z);
      const silu = castEach ? f32(z / f32(1 + exp(-z))) : f32(z * s);
      const a = activation === "sigmoid" ? s : silu;
      let n = f32(row[j] * inv);
      n = castEach ? round(f32(scale.values[j] * round(n))) : f32(n * scale.values[j]);
      const leftToRight = recipe === "fla" && activation !== "sigmoid";
      out.values[r * columns + j] = round(leftToRight ? f32(f32(n * z) * s) : f32(n * a));
    }
  }
  return { out };
}

const kernels = { gated_group_rmsnorm: gatedGroupRmsnorm, gated_rmsnorm: gatedRmsnorm };

// ---------------------------------------------------------------- main

function check({ told, tensors }, got, policy) {
  const lo = tensors[`accept/${policy}/out_lo`].values;
  const hi = tensors[`accept/${policy}/out_hi`].values;
  const free = tensors[`accept/${policy}/out_free`]?.values; // 1 where anything is allowed
  let wrong = 0;
  got.out.values.forEach((x, i) => {
    // lo and hi both NaN: must be NaN
    const inside = Number.isNaN(lo[i]) ? Number.isNaN(x) : lo[i] <= x && x <= hi[i];
    if (!free?.[i] && !inside) wrong++;
  });
  console.log(`${told.op}/${told.case}: ${wrong} of ${lo.length} outside of what ${policy} allows`);
  return wrong === 0;
}

function inputs(tensors) {
  // In an export, inputs are inputs/NAME; in a verification they go by their names.
  const own = Object.entries(tensors).filter(([name]) => name.startsWith("inputs/"));
  return own.length ? Object.fromEntries(own.map(([name, t]) => [name.slice(7), t])) : tensors;
}

function main([given, wanted]) {
  if (!given) throw new Error("usage: kernels.mjs IN.safetensors [OUT.safetensors]");
  const file = read(given);
  const kernel = kernels[file.told.op];
  if (!kernel) throw new Error(`op ${file.told.op} is not supported`);
  const made = kernel(inputs(file.tensors), file.told.params, file.told.recipe);
  if (wanted) write(wanted, made);
  else process.exitCode = check(file, made, "wgsl") ? 0 : 1;
}

try {
  main(process.argv.slice(2));
} catch (error) {
  console.error(error.message); // the last line of stderr becomes part of the verdict
  process.exitCode = 1;
}
