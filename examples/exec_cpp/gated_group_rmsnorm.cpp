// gated_group_rmsnorm as a program for `refkern verify --backend exec:PROGRAM`.
//
//     g++ -std=c++17 -O2 -ffp-contract=off gated_group_rmsnorm.cpp -o gated_group_rmsnorm
//     refkern verify refkern-goldens/gated_group_rmsnorm --backend exec:./gated_group_rmsnorm
//
// Reads IN.safetensors, computes, writes OUT.safetensors.  Standard library only, little-endian
// machines only.  -ffp-contract=off: a multiply and an add that the compiler fuses are another
// rounding.  The arithmetic is recipe modular-apple's, with one exception: a case of mamba-ssm is
// rounded once, as that recipe says.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

// ---------------------------------------------------------------- JSON, as much as is needed

struct Json {
    std::string text;  // a string's value, or a number as it is written
    std::vector<Json> list;
    std::map<std::string, Json> object;
    const Json& operator[](const std::string& key) const {
        auto found = object.find(key);
        if (found == object.end()) throw std::runtime_error("no \"" + key + "\" in the header");
        return found->second;
    }
    bool has(const std::string& key) const { return object.count(key) != 0; }
};

struct JsonReader {
    const std::string& s;
    size_t at = 0;

    char next() {
        while (at < s.size() && (s[at] == ' ' || s[at] == '\n' || s[at] == '\t' || s[at] == '\r')) at++;
        if (at >= s.size()) throw std::runtime_error("the header ends too early");
        return s[at];
    }
    void expect(char c) {
        if (next() != c) throw std::runtime_error("the header is not the JSON that was expected");
        at++;
    }
    Json value() {
        Json found;
        char c = next();
        if (c == '"') {
            found.text = string();
        } else if (c == '{') {
            expect('{');
            while (next() != '}') {
                std::string key = string();
                expect(':');
                found.object[key] = value();
                if (next() == ',') at++;
            }
            expect('}');
        } else if (c == '[') {
            expect('[');
            while (next() != ']') {
                found.list.push_back(value());
                if (next() == ',') at++;
            }
            expect(']');
        } else {  // a number, true, false, null
            while (at < s.size() && !std::strchr(",]} \n\t\r", s[at])) found.text += s[at++];
        }
        return found;
    }
    std::string string() {
        std::string found;
        expect('"');
        while (at < s.size() && s[at] != '"') {
            char c = s[at++];
            if (c != '\\') {
                found += c;
                continue;
            }
            c = s.at(at++);
            if (c == 'u') {  // refkern's texts are ASCII, and so are its names
                found += static_cast<char>(std::stoi(s.substr(at, 4), nullptr, 16));
                at += 4;
            } else {
                found += c == 'n' ? '\n' : c == 't' ? '\t' : c == 'r' ? '\r' : c;
            }
        }
        expect('"');
        return found;
    }
};

// ---------------------------------------------------------------- number formats

uint32_t bits_of(float x) {
    uint32_t u;
    std::memcpy(&u, &x, 4);
    return u;
}

float from_bits(uint32_t u) {
    float x;
    std::memcpy(&x, &u, 4);
    return x;
}

float from_bf16(uint16_t h) { return from_bits(uint32_t(h) << 16); }

uint16_t to_bf16(float x) {  // ties to even
    if (std::isnan(x)) return 0x7fc0;
    uint32_t u = bits_of(x);
    return uint16_t((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

float from_f16(uint16_t h) {
    float sign = h & 0x8000 ? -1.0f : 1.0f;
    int exponent = (h >> 10) & 31, mantissa = h & 1023;
    if (exponent == 31) return mantissa ? NAN : sign * INFINITY;
    if (exponent == 0) return sign * std::ldexp(float(mantissa), -24);
    return sign * std::ldexp(float(mantissa + 1024), exponent - 25);
}

uint16_t to_f16(float x) {  // ties to even; 65520 and more become infinity
    if (std::isnan(x)) return 0x7e00;
    uint16_t sign = std::signbit(x) ? 0x8000 : 0;
    float a = std::fabs(x);
    if (a >= 65520.0f) return sign | 0x7c00;
    if (a < 0x1p-14f) return sign | uint16_t(std::nearbyint(a * 0x1p24f));  // exact product
    int exponent;
    std::frexp(a, &exponent);
    // 11 significant bits; a carry into the exponent field is what is wanted
    auto scaled = uint32_t(std::nearbyint(std::ldexp(a, 11 - exponent)));
    return sign | uint16_t((uint32_t(exponent + 13) << 10) + scaled);
}

struct Tensor {
    std::string dtype;  // "F32", "BF16" or "F16"
    std::vector<int64_t> shape;
    std::vector<float> values;  // widened, which is exact
};

std::vector<float> widen(const std::string& dtype, const char* data, size_t bytes) {
    if (dtype == "F32") {
        std::vector<float> found(bytes / 4);
        std::memcpy(found.data(), data, bytes);
        return found;
    }
    if (dtype != "BF16" && dtype != "F16") throw std::runtime_error("dtype " + dtype + " is not supported");
    std::vector<uint16_t> codes(bytes / 2);
    std::memcpy(codes.data(), data, bytes);
    std::vector<float> found(codes.size());
    for (size_t i = 0; i < codes.size(); i++) found[i] = dtype == "BF16" ? from_bf16(codes[i]) : from_f16(codes[i]);
    return found;
}

// One rounding to a dtype, as float32 again.
float rounded(float x, const std::string& dtype) {
    if (dtype == "BF16") return from_bf16(to_bf16(x));
    if (dtype == "F16") return from_f16(to_f16(x));
    return x;
}

std::string narrow(const Tensor& t) {
    std::string bytes;
    for (float x : t.values) {
        uint32_t code = std::isnan(x) ? 0x7fc00000 : bits_of(x);  // every NaN as the canonical one
        if (t.dtype == "BF16") code = to_bf16(x);
        if (t.dtype == "F16") code = to_f16(x);
        bytes.append(reinterpret_cast<const char*>(&code), t.dtype == "F32" ? 4 : 2);
    }
    return bytes;
}

// ---------------------------------------------------------------- safetensors

struct Given {
    std::map<std::string, Tensor> tensors;
    Json told;  // the metadata key "refkern"
};

Given read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw std::runtime_error("cannot read " + path);
    std::string all((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    uint64_t length = 0;
    if (all.size() < 8) throw std::runtime_error(path + " is too short");
    std::memcpy(&length, all.data(), 8);
    if (length > all.size() - 8) throw std::runtime_error(path + " is cut off");
    std::string text = all.substr(8, length);
    Json header = JsonReader{text}.value();
    Given given;
    std::string told = header["__metadata__"]["refkern"].text;
    given.told = JsonReader{told}.value();
    for (auto& [name, entry] : header.object) {
        if (name == "__metadata__") continue;
        // In an export, inputs are inputs/NAME, and beside them lie stages, outputs and intervals.
        std::string own = name.rfind("inputs/", 0) == 0 ? name.substr(7) : name;
        if (own.find('/') != std::string::npos) continue;
        size_t begin = std::stoull(entry["data_offsets"].list.at(0).text);
        size_t end = std::stoull(entry["data_offsets"].list.at(1).text);
        if (begin > end || end > all.size() - 8 - length) throw std::runtime_error(name + " is cut off");
        Tensor t{entry["dtype"].text, {}, widen(entry["dtype"].text, all.data() + 8 + length + begin, end - begin)};
        for (auto& n : entry["shape"].list) t.shape.push_back(std::stoll(n.text));
        given.tensors[own] = t;
    }
    return given;
}

void write(const std::string& path, const std::map<std::string, Tensor>& tensors) {
    std::string header = "{", body;
    for (auto& [name, t] : tensors) {
        std::string bytes = narrow(t), shape;
        for (auto n : t.shape) shape += (shape.empty() ? "" : ",") + std::to_string(n);
        header += (header.size() > 1 ? ",\"" : "\"") + name + "\":{\"dtype\":\"" + t.dtype + "\",\"shape\":[" + shape +
                  "],\"data_offsets\":[" + std::to_string(body.size()) + "," +
                  std::to_string(body.size() + bytes.size()) + "]}";
        body += bytes;
    }
    header += "}";
    uint64_t length = header.size();
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(&length), 8);
    file << header << body;
    if (!file.flush()) throw std::runtime_error("cannot write " + path);
}

// ---------------------------------------------------------------- the kernel

const int LANES = 32;

float silu(float g) {
    float e = float(std::exp(-double(g)));  // float64's exp, rounded once: correct but for rare ties
    return g * (1.0f / (1.0f + e));
}

// One warp a group: lane L takes j = L, L + 32, ...; then the XOR butterfly 16, 8, 4, 2, 1.
float sum_of_squares(const float* x, int64_t size) {
    float lane[LANES] = {};
    for (int64_t j = 0; j < size; j++) lane[j % LANES] = std::fma(x[j], x[j], lane[j % LANES]);
    for (int step = LANES / 2; step > 0; step /= 2)
        for (int l = 0; l < step; l++) lane[l] += lane[l + step];
    return lane[0];
}

std::map<std::string, Tensor> gated_group_rmsnorm(const Given& given) {
    const Tensor& y = given.tensors.at("y");
    const Tensor& weight = given.tensors.at("weight");
    auto gate = given.tensors.find("gate");  // not there: no gating
    const Json& params = given.told["params"];
    int64_t rows = y.shape.at(0), width = y.shape.at(1), size = std::stoll(params["group_size"].text);
    int64_t groups = width / size;
    float eps = float(std::stod(params["eps"].text));
    bool cast_before_weight = given.told["recipe"].text != "mamba-ssm";
    std::string normalized_dtype = cast_before_weight ? y.dtype : "F32";

    Tensor gated{"F32", y.shape, y.values}, normalized{normalized_dtype, y.shape, y.values}, out = y;
    Tensor sums{"F32", {rows, groups}, std::vector<float>(size_t(rows * groups))}, rstd = sums;
    if (gate != given.tensors.end())
        for (size_t i = 0; i < y.values.size(); i++) gated.values[i] = y.values[i] * silu(gate->second.values[i]);
    for (int64_t g = 0; g < rows * groups; g++) {
        const float* x = gated.values.data() + g * size;
        sums.values[g] = sum_of_squares(x, size);
        float variance = sums.values[g] / float(size) + eps;
        rstd.values[g] = float(1.0 / std::sqrt(double(variance)));
        for (int64_t j = 0; j < size; j++) {
            int64_t i = g * size + j;
            normalized.values[i] = rounded(x[j] * rstd.values[g], normalized_dtype);
            out.values[i] = rounded(weight.values[i % width] * normalized.values[i], y.dtype);
        }
    }
    return {{"gated", gated}, {"sum_of_squares", sums}, {"rstd", rstd}, {"normalized", normalized}, {"out", out}};
}

int main(int argc, char** argv) try {
    if (argc != 3) throw std::runtime_error("usage: gated_group_rmsnorm IN.safetensors OUT.safetensors");
    Given given = read(argv[1]);
    if (given.told["op"].text != "gated_group_rmsnorm") throw std::runtime_error("op " + given.told["op"].text + " is not supported");
    write(argv[2], gated_group_rmsnorm(given));
    return 0;
} catch (const std::exception& error) {
    std::cerr << error.what() << "\n";  // the last line of stderr becomes part of the verdict
    return 1;
}
