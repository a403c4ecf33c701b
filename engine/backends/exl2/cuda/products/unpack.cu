// Weights as float16 numbers, equal to exllamav2's bit for bit. In passes of many rows, cuBLAS
// multiplies by them. One warp unpacks a chunk.
#include <instructions.cuh>

#include <weights.cuh>

// perm: the natural place of each row; if null, rows stay in the permuted order.
struct Unpack {
    Mat m;
    const int* perm;
};
template <int BITS>
DEV void all(const char* chunk, u32 lane, u32* d) {
    u32 q[2 * BITS];
    read<BITS>(chunk, lane, q);
#pragma unroll
    for (int i = 0; i < 4; i++) decode<BITS>(q, i, d + 16 * (i >> 1));
}

KERNEL(128, 1) unpack(CONSTANT Unpack p) {
    const Mat& m = p.m;
    const u32 lane = threadIdx.x & 31, g = lane >> 2, t4 = lane & 3,
              k = blockIdx.y * 4 + (threadIdx.x >> 5), column = blockIdx.x;
    if (k >= m.chunks) return;
    u32 i = 0;
    while (i + 1 < m.num_runs && k >= m.runs[i + 1].start) i++;
    const Run& r = m.runs[i];
    const u32 group = r.group + ((k - r.start) >> r.shift);
    const char* const s =
        (const char*)(m.w + ((u64)column * m.cost + r.prefix + (k - r.start) * r.bits) * 64);
    const u32 word = m.scale[group * (m.n >> 3) + column * 8 + g], most = m.smax[group];
    u32 hs[8];
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const u32 v = scales(word, j, most);
        hs[j] = same(v, 0);
        hs[j + 4] = same(v, 1);
    }
    u32 d[32];
    switch (r.bits) {
        case 2: all<2>(s, lane, d); break;
        case 3: all<3>(s, lane, d); break;
        case 4: all<4>(s, lane, d); break;
        case 5: all<5>(s, lane, d); break;
        case 6: all<6>(s, lane, d); break;
        default: all<8>(s, lane, d); break;
    }
#pragma unroll
    for (int j = 0; j < 32; j++) d[j] = mul2(d[j], hs[j >> 2]);
#pragma unroll
    for (int row = 0; row < 8; row++) {
        const u32 from = k * 32 + t4 * 8 + row, to = p.perm ? p.perm[from] : from;
        U4 x;
#pragma unroll
        for (int c = 0; c < 4; c++)
            x.v[c] = halves(d[8 * c + (row >> 1)], d[8 * c + 4 + (row >> 1)], row & 1);
        *(U4*)(m.out + (u64)to * m.ldo + column * 128 + g * 16) = x;
    }
}
