// One entry format: where its rows lie, and bytes to bf16 and back, bit for bit as
// dsv4kv/ops/codec.py. That needs subnormals and true divisions: never compile with fast math.
//
// Compile-time, from the page layout: DSV_DIMS channels, of which the first DSV_VALUE_DIMS are
// stored as DSV_VALUE (0 bf16, 1 e4m3, 2 e2m1) and the others as bf16; DSV_GROUP channels share a
// scale (0: no scales) of kind DSV_SCALE (0 none, 1 ue8m0, 2 e4m3, 3 fp32, a power of two, 4 fp32,
// any number); DSV_SCALE_PADDING zero bytes follow the scales, DSV_SCALE_BYTES in all. A page of
// DSV_PAGE_BYTES holds DSV_ENTRIES data rows of DSV_DATA_ROW bytes, whose channels without scale
// begin at DSV_TAIL_START; the scales of its first entry begin at DSV_SCALE_START, those of the next
// one DSV_SCALE_STRIDE further on: in rows of their own, or in the data rows.
//
// A chunk is 8 channels, one 16-byte bf16 vector. Lane l of a warp owns chunks l, l + 32, ...; of
// a 128-channel entry only lanes 0..15 own one.
#ifndef DSV_FORMAT_CUH
#define DSV_FORMAT_CUH
#include "common.cuh"

constexpr int kChunks = DSV_DIMS / 8;
constexpr int kChunksPerLane = (kChunks + kWarpSize - 1) / kWarpSize;
constexpr bool kE4m3 = DSV_VALUE == 1, kE2m1 = DSV_VALUE == 2;
constexpr int kQuantised = kE4m3 || kE2m1 ? DSV_VALUE_DIMS / 8 : 0;  // chunks; the others are bf16
constexpr int kQuantisedBytes = kE2m1 ? 4 : 8;                       // of one quantised chunk
constexpr int kPlainStart = kQuantised ? DSV_TAIL_START : 0;         // of the others, in a row
constexpr bool kHasScales = DSV_SCALE != 0;
constexpr bool kAmaxScales = DSV_SCALE == 4, kE4m3Scales = DSV_SCALE == 2;
constexpr bool kFloatScales = DSV_SCALE == 3 || kAmaxScales;
constexpr int kGroupChunks = kHasScales ? DSV_GROUP / 8 : 1;
constexpr int kScaleBytes = kFloatScales ? 4 : 1;
constexpr int kGroups = kHasScales ? DSV_VALUE_DIMS / DSV_GROUP : 0;

static_assert(DSV_DIMS % 8 == 0 && DSV_VALUE_DIMS % 8 == 0, "chunks are 8 channels");
static_assert((kGroupChunks & (kGroupChunks - 1)) == 0 && kGroupChunks <= kWarpSize,
              "a group is a power of two of chunks, at most a warp");
static_assert(!kE4m3Scales || kE2m1, "e4m3 scales go with e2m1 values");
static_assert(!kAmaxScales || kE4m3, "scales of any size go with e4m3 values");
static_assert(DSV_SCALE_BYTES == kGroups * kScaleBytes + DSV_SCALE_PADDING, "scales, then padding");
static_assert(DSV_SCALE_BYTES % 4 == 0 && DSV_SCALE_START % 4 == 0 && DSV_SCALE_STRIDE % 4 == 0,
              "scales are whole words");
static_assert(DSV_SCALE_BYTES != 8 || (DSV_SCALE_START % 8 == 0 && DSV_SCALE_STRIDE % 8 == 0),
              "eight bytes go at once");
static_assert(kQuantised == kChunks || kPlainStart % 16 == 0, "a plain chunk goes at once");

// ---- Rows -------------------------------------------------------------------------------------

template <typename Byte>
__device__ __forceinline__ Byte* data_row_at(Byte* pages, i64 page, int row) {
    return pages + page * DSV_PAGE_BYTES + row * DSV_DATA_ROW;
}
template <typename Byte>
__device__ __forceinline__ Byte* scale_row_at(Byte* pages, i64 page, int row) {
    return pages + page * DSV_PAGE_BYTES + DSV_SCALE_START + row * DSV_SCALE_STRIDE;
}
// Rows of a physical entry, which counts entries through all pages and is not negative.
template <typename Byte>
__device__ __forceinline__ Byte* data_row(Byte* pages, i64 entry) {
    return data_row_at(pages, entry / DSV_ENTRIES, int(entry % DSV_ENTRIES));
}
template <typename Byte>
__device__ __forceinline__ Byte* scale_row(Byte* pages, i64 entry) {
    return scale_row_at(pages, entry / DSV_ENTRIES, int(entry % DSV_ENTRIES));
}

// ---- Bytes to bf16 ----------------------------------------------------------------------------

// What a lane holds of a stored entry: its chunks as they are, and the word with each one's scale.
struct StoredEntry {
    uint4 data[kChunksPerLane];
    u32 scale[kChunksPerLane];
};

// As e4m3_pair_to_bf16: the bits in place give the value times 2^-126.
__device__ __forceinline__ u32 e2m1_pair_to_bf16(u32 word, int pair) {
    u32 v = (word >> (8 * pair) & 0xffu) * 0x1001u;  // one nibble at the bottom of each half
    return mul_bf16x2((v << 12 & 0x80008000u) | (v << 6 & 0x01c001c0u), 0x7e807e80u);
}

// The scale of a chunk in both halves, as bf16: none but those of any size need more.
__device__ __forceinline__ u32 scale_to_bf16x2(u32 word, int chunk) {
    if (kFloatScales) return (word >> 16) * 0x10001u;
    u32 code = word >> (8 * (chunk / kGroupChunks % 4)) & 0xffu;
    if (kE4m3Scales) return e4m3_pair_to_bf16(code * 0x101u, 0);
    return (code ? code << 7 : 0x40u) * 0x10001u;  // 2^-127 is subnormal
}

// Whether chunk i is quantised for some lanes only.
__device__ __forceinline__ constexpr bool is_mixed(int i) {
    return i * kWarpSize < kQuantised && kQuantised < (i + 1) * kWarpSize;
}

// Loads the chunks of lane ``lane`` of an entry that nobody writes at the same time.
template <typename From = Streamed>
__device__ __forceinline__ StoredEntry load_entry(const u8* data, const u8* scales, int lane) {
    StoredEntry entry = {};
#pragma unroll
    for (int i = 0; i < kChunksPerLane; ++i) {
        int chunk = lane + i * kWarpSize;
        if (chunk >= kChunks) continue;
        bool plain = chunk >= kQuantised, both = From::kBoth && is_mixed(i);
        uint4& stored = entry.data[i];
        if (plain || both) {
            stored = From().template load<uint4>(data + kPlainStart + max(chunk - kQuantised, 0) * 16);
        }
        const u8* values = data + (both ? min(chunk, kQuantised - 1) : chunk) * kQuantisedBytes;
        if (!plain || both) {
            uint2 v = {stored.x, stored.y};
            if (kE4m3) v = From().template load<uint2>(values);
            if (kE2m1) v.x = From().template load<u32>(values);
            stored.x = plain ? stored.x : v.x, stored.y = plain ? stored.y : v.y;
        }
        if (kHasScales && DSV_SCALE_BYTES != 8 && chunk < kQuantised) {
            entry.scale[i] = From().template load<u32>(scales + chunk / kGroupChunks * kScaleBytes / 4 * 4);
        }
    }
    if (DSV_SCALE_BYTES == 8) {  // four groups of 64 in each 32 chunks: word i is that of chunk i
        uint2 both = From().template load<uint2>(scales);
        entry.scale[0] = both.x, entry.scale[kChunksPerLane - 1] = both.y;
    }
    return entry;
}

// Chunk i of lane ``lane`` as 8 bf16.
__device__ __forceinline__ uint4 decode_chunk(const StoredEntry& entry, int i, int lane) {
    int chunk = lane + i * kWarpSize;
    uint4 stored = entry.data[i];
    if (i * kWarpSize >= kQuantised) return stored;
    u32 values[4];
    u32 factor = kHasScales ? scale_to_bf16x2(entry.scale[i], chunk) : 0;
#pragma unroll
    for (int p = 0; p < 4; ++p) {
        values[p] = kE4m3 ? e4m3_pair_to_bf16(p < 2 ? stored.x : stored.y, p % 2)
                          : e2m1_pair_to_bf16(stored.x, p);
        if (kAmaxScales) {  // rounded to float32, then to bf16, as engines do
            float scale = __uint_as_float(entry.scale[i]);
            values[p] = pack_bf16(bf16_low(values[p]) * scale, bf16_high(values[p]) * scale);
        } else if (kHasScales) {
            values[p] = mul_bf16x2(values[p], factor);
        }
    }
    bool plain = is_mixed(i) && chunk >= kQuantised;  // selected: a branch takes longer
    return make_uint4(plain ? stored.x : values[0], plain ? stored.y : values[1],
                      plain ? stored.z : values[2], plain ? stored.w : values[3]);
}

// ---- Values to bytes --------------------------------------------------------------------------

// e4m3 codes of two values, nearest even, saturated at 448; the first in the low byte.
#if !defined(DSV_SHIM) && __CUDA_ARCH__ >= 890
__device__ __forceinline__ u32 e4m3_pair(float first, float second) {
    u16 codes;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(second), "f"(first));
    return codes;
}
#else
__device__ __forceinline__ u32 e4m3_code(float value) {
    u32 bits = __float_as_uint(value), size = bits & 0x7fffffffu;
    u32 code;
    if (size >= 0x43e00000u) {  // 448
        code = 0x7e;
    } else if (size >= 0x3c800000u) {  // 2^-6: rebias, round to 3 bits of mantissa
        code = (size - (120u << 23) + 0x7ffffu + (size >> 20 & 1)) >> 20;
    } else {  // the last bit of 2^14 is 2^-9, the smallest e4m3: the addition rounds
        code = __float_as_uint(__uint_as_float(size) + 16384.0f) - 0x46800000u;
    }
    return code | (bits >> 24 & 0x80u);
}
__device__ __forceinline__ u32 e4m3_pair(float first, float second) {
    return e4m3_code(first) | e4m3_code(second) << 8;
}
#endif

// e2m1 code of a value over its scale, nearest even, saturated at 6.
__device__ __forceinline__ u32 e2m1_code(float quotient) {
    u32 bits = __float_as_uint(quotient), sign = bits >> 28 & 8u;
    bits &= 0x7fffffffu;
    u32 large = (bits - (126u << 23) + 0x1fffffu + (bits >> 22 & 1)) >> 22;
    // The last bit of 2^22 is 0.5, the smallest e2m1: the addition rounds.
    u32 small = __float_as_uint(__uint_as_float(bits) + 4194304.0f) - 0x4a800000u;
    return u32(min(int(bits >= 0x3f800000u ? large : small), 7)) | sign;
}

// What is quantised is bf16, a chunk of 8 as it is loaded, or float32 that nobody has rounded.
struct Eight {
    float at[8];
};
__device__ __forceinline__ float value_of(const uint4& chunk, int i) {
    u32 pairs[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
    return i % 2 ? bf16_high(pairs[i / 2]) : bf16_low(pairs[i / 2]);
}
__device__ __forceinline__ float value_of(const Eight& chunk, int i) { return chunk.at[i]; }
__device__ __forceinline__ uint4 rounded(const uint4& chunk) { return chunk; }
__device__ __forceinline__ uint4 rounded(const Eight& v) {
    return make_uint4(pack_bf16(v.at[0], v.at[1]), pack_bf16(v.at[2], v.at[3]),
                      pack_bf16(v.at[4], v.at[5]), pack_bf16(v.at[6], v.at[7]));
}

// Largest magnitude of a chunk, as float bits.
__device__ __forceinline__ int largest_of(const uint4& chunk) {
    int largest = 0;
    u32 pairs[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
#pragma unroll
    for (int p = 0; p < 4; ++p) {
        largest = max(largest, int(pairs[p] & 0x7fff0000u));
        largest = max(largest, int(pairs[p] << 16 & 0x7fff0000u));
    }
    return largest;
}
__device__ __forceinline__ int largest_of(const Eight& chunk) {
    int largest = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        largest = max(largest, int(__float_as_uint(chunk.at[i]) & 0x7fffffffu));
    }
    return largest;
}

// Largest magnitude in the group of this lane's chunk, as float bits. Every lane takes part.
template <typename Chunk>
__device__ __forceinline__ u32 group_amax(const Chunk& chunk) {
    int largest = largest_of(chunk);
#pragma unroll
    for (int step = 1; step < kGroupChunks; step *= 2) {
        largest = max(largest, __shfl_xor_sync(kFullWarp, largest, step));
    }
    return u32(largest);
}

// The stored code of a group's scale: of a power of two its exponent + 127, an e4m3 byte, or the
// bits of any number.
// Smallest maxima: see AMAX_FLOOR in dsv4kv/ops/reference_codec.py.
__device__ __forceinline__ u32 scale_code(u32 amax) {
    if (kAmaxScales) {
        return __float_as_uint(fmaxf(__uint_as_float(amax) / 448.0f, 0x1p-126f));
    }
    constexpr float kFloor = kE2m1 ? 6.0f * 0x1p-126f : 1e-4f;
    constexpr float kInverseLargest = kE2m1 ? 1.0f / 6.0f : 1.0f / 448.0f;
    float scaled = fmaxf(__uint_as_float(amax), kFloor) * kInverseLargest;
    if (kE4m3Scales) return max(int(e4m3_pair(scaled, 0.0f) & 0xffu), 1);
    return (__float_as_uint(scaled) + 0x7fffffu) >> 23;  // rounded up: any mantissa bit carries
}

// The scale that is no power of two.
__device__ __forceinline__ float scale_of(u32 code) {
    if (kAmaxScales) return __uint_as_float(code);
    return bf16_low(e4m3_pair_to_bf16(code * 0x101u, 0));
}

// Value i of a chunk over its scale.
__device__ __forceinline__ float quotient_of(const Eight& chunk, int i, u32 code) {
    if (kAmaxScales || kE4m3Scales) return value_of(chunk, i) / scale_of(code);
    return value_of(chunk, i) * __uint_as_float((254u - code) << 23);
}
__device__ __forceinline__ float quotient_of(const uint4& chunk, int i, u32 code) {
    float value = value_of(chunk, i);
    if (kAmaxScales) return value / scale_of(code);
    if (!kE4m3Scales) return value * __uint_as_float((254u - code) << 23);
    // Values have 8 bits of significand and a tie times an e4m3 scale at most 7: a quotient is a
    // tie or well away from it, and 16 bits tell which in spite of the rounded inverse.
    u32 bits = __float_as_uint(value * (1.0f / scale_of(code)));
    return __uint_as_float((bits + 0x80u) & ~0xffu);
}

template <typename Chunk>
__device__ __forceinline__ uint2 quantise_e4m3(const Chunk& chunk, u32 code) {
    u32 codes[4];
#pragma unroll
    for (int p = 0; p < 4; ++p) {
        codes[p] = e4m3_pair(quotient_of(chunk, 2 * p, code), quotient_of(chunk, 2 * p + 1, code));
    }
    return make_uint2(codes[0] | codes[1] << 16, codes[2] | codes[3] << 16);
}

template <typename Chunk>
__device__ __forceinline__ u32 quantise_e2m1(const Chunk& chunk, u32 code) {
    u32 codes = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) codes |= e2m1_code(quotient_of(chunk, i, code)) << (4 * i);
    return codes;
}

// Writes the scale row, of which every lane holds the code of each of its chunks.
__device__ __forceinline__ void store_scales(u8* scales, const u32* codes) {
    constexpr int kWords = kWarpSize / kGroupChunks / 4;  // of the groups in 32 chunks
    int lane = lane_id();
    u32 words[kChunksPerLane] = {};
#pragma unroll
    for (int i = 0; i < kChunksPerLane; ++i) {
#pragma unroll
        for (int b = 0; b < 4; ++b) {
            int owner = (lane * 4 + b) * kGroupChunks % kWarpSize;
            words[i] |= __shfl_sync(kFullWarp, codes[i], owner) << (8 * b);
        }
    }
    if constexpr (DSV_SCALE_BYTES == 8) {
        if (lane == 0) dsv_write(scales, make_uint2(words[0], words[kChunksPerLane - 1]));
    } else {
#pragma unroll
        for (int i = 0; i < kChunksPerLane; ++i) {
            int word = i * kWords + lane;
            if (lane < kWords && word * 4 < DSV_SCALE_BYTES) dsv_write(scales + word * 4, words[i]);
        }
    }
}

// Quantises an entry and writes its bytes. Every lane of the warp takes part and brings its
// chunks, chunks[i] being chunk lane + 32 i; what is beyond the entry is ignored.
template <typename Chunk>
__device__ __forceinline__ void encode_entry(u8* data, u8* scales, const Chunk* chunks) {
    int lane = lane_id();
    u32 codes[kChunksPerLane];
#pragma unroll
    for (int i = 0; i < kChunksPerLane; ++i) {
        u32 code = kHasScales ? scale_code(group_amax(chunks[i])) : 127u;
        codes[i] = lane + i * kWarpSize < kQuantised ? code : 0;  // padding is zero
    }
    if constexpr (kHasScales && !kFloatScales) store_scales(scales, codes);
#pragma unroll
    for (int i = 0; i < kChunksPerLane; ++i) {
        int chunk = lane + i * kWarpSize;
        if (chunk >= kChunks) continue;
        u8* values = data + chunk * kQuantisedBytes;
        if (chunk >= kQuantised) {
            int plain = chunk - kQuantised;
            dsv_write(data + kPlainStart + plain * 16, rounded(chunks[i]));
        } else if (kE4m3) {
            dsv_write(values, quantise_e4m3(chunks[i], codes[i]));
        } else {
            dsv_write(values, quantise_e2m1(chunks[i], codes[i]));
        }
        if (kFloatScales && chunk < kQuantised && chunk % kGroupChunks == 0) {
            dsv_write(scales + chunk / kGroupChunks * 4, kAmaxScales ? codes[i] : codes[i] << 23);
        }
    }
}
#endif  // DSV_FORMAT_CUH
