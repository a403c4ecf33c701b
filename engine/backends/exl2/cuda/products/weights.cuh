// The weights in packing.py's layout, and how a lane decodes its part of them.
//
// A tile has 64 columns. It is a stream of chunks of 32 rows, in the permuted order. A chunk of
// `bits` bits has 64 * bits words: 2 * bits for each lane, read 16 bytes at a time. Lane (g, t) =
// (lane / 4, lane % 4) has rows 8t to 8t + 7 of columns 8g to 8g + 7, so that one word contains its
// scales, and 16 bytes of x contain its activations.

struct Run {
    u32 start;   // its first chunk
    u32 bits;    // of a code
    u32 prefix;  // half of a lane's words in a column's earlier chunks: the sum of their bits
    u32 group;   // its first group of rows with a scale
    u32 shift;   // log2 of the chunks in a group
};
struct Mat {
    const u32* w;
    const u32* scale;  // (groups, columns / 8), as in the file
    const u32* smax;   // for each group, in both halves
    const char* x;
    char* out;
    const u32* perm;         // the column of x for each row of the weights; only if STAGED
    u32 n, chunks, cost;     // columns; chunks of a column; the sum of their bits
    u32 base, tiles, tile0;  // in a launch: half the first word's index; tiles; the first tile
    u32 num_runs, ldx, ldo;  // bytes between rows of x, of out
    u32 add;                 // whether to add to the content of out
    Run runs[6];
};

// Codes as float16 numbers around 0. The two halves of a word are two rows. A code's bits in the
// mantissa of 1024 give 1024 + code; if they are higher up, a multiplication moves them down.
#define H2(x) ((x) * 0x10001u)
DEV void dq2(u32 q, u32* d) {  // 8 pairs
    d[0] = sub2(pick<0x00030003>(q), H2(0x6402));
    d[1] = fma2(pick<0x000c000c>(q), H2(0x3400), H2(0xdc08));  // / 4 - 258
    d[2] = fma2(pick<0x00300030>(q), H2(0x2c00), H2(0xd420));  // / 16 - 66
    d[3] = fma2(pick<0x00c000c0>(q), H2(0x2400), H2(0xcc80));  // / 64 - 18
    q >>= 8;
    d[4] = sub2(pick<0x00030003>(q), H2(0x6402));
    d[5] = fma2(pick<0x000c000c>(q), H2(0x3400), H2(0xdc08));
    d[6] = fma2(pick<0x00300030>(q), H2(0x2c00), H2(0xd420));
    d[7] = fma2(pick<0x00c000c0>(q), H2(0x2400), H2(0xcc80));
}
DEV void dq4(u32 q, u32* d) {  // 4 pairs
    d[0] = sub2(pick<0x000f000f>(q), H2(0x6408));
    d[1] = fma2(pick<0x00f000f0>(q), H2(0x2c00), H2(0xd480));  // / 16 - 72
    q >>= 8;
    d[2] = sub2(pick<0x000f000f>(q), H2(0x6408));
    d[3] = fma2(pick<0x00f000f0>(q), H2(0x2c00), H2(0xd480));
}
DEV void dq8(u32 q, u32* d) {  // 2 pairs
    d[0] = sub2(pick<0x00ff00ff>(q), H2(0x6480));
    d[1] = sub2(pick<0x00ff00ff>(q >> 8), H2(0x6480));
}
DEV void dq6(u32 a, u32 b, u32 c, u32* d) {  // 8 pairs
    d[0] = sub2(pick<0x003f003f>(a), H2(0x6420));
    d[1] = sub2(pick<0x003f003f>(a >> 6), H2(0x6420));
    d[2] = sub2(pick<0x003f003f>(b), H2(0x6420));
    d[3] = sub2(pick<0x003f003f>(b >> 6), H2(0x6420));
    d[4] = sub2(pick<0x003f003f>(c), H2(0x6420));
    d[5] = sub2(pick<0x003f003f>(c >> 6), H2(0x6420));
    d[6] = sub2(pick<0x000f000f>(a >> 12) | (c >> 8 & 0x00300030), H2(0x6420));
    d[7] = sub2(pick<0x000f000f>(b >> 12) | (c >> 10 & 0x00300030), H2(0x6420));
}
DEV void dq5(const u32* q, u32* d) {  // 16 pairs
    u32 last = 0x64006400;
#pragma unroll
    for (int w = 0; w < 5; w++) {
        d[3 * w] = sub2(pick<0x001f001f>(q[w]), H2(0x6410));
        d[3 * w + 1] = fma2(pick<0x03e003e0>(q[w]), H2(0x2800), H2(0xd200));  // / 32 - 48
        d[3 * w + 2] = sub2(pick<0x001f001f>(q[w] >> 10), H2(0x6410));
        last |= q[w] >> (15 - w) & H2(1u << w);
    }
    d[15] = sub2(last, H2(0x6410));
}
DEV void dq3(const u32* q, u32* d) {  // 16 pairs
    u32 last = 0x64006400;
#pragma unroll
    for (int w = 0; w < 3; w++) {
        d[5 * w] = sub2(pick<0x00070007>(q[w]), H2(0x6404));
        d[5 * w + 1] = fma2(pick<0x00380038>(q[w]), H2(0x3000), H2(0xd820));  // / 8 - 132
        d[5 * w + 2] = fma2(pick<0x01c001c0>(q[w]), H2(0x2400), H2(0xcd00));  // / 64 - 20
        d[5 * w + 3] = sub2(pick<0x00070007>(q[w] >> 9), H2(0x6404));
        d[5 * w + 4] = fma2(pick<0x00380038>(q[w] >> 9), H2(0x3000), H2(0xd820));
        last |= q[w] >> (15 - w) & H2(1u << w);
    }
    d[15] = sub2(last, H2(0x6404));
}

// The words of a lane in a chunk.
template <int BITS>
DEV void read(const char* chunk, u32 lane, u32* q) {
#pragma unroll
    for (int v = 0; v < BITS / 2; v++) {
        U4 r = *(const U4*)(chunk + v * 512 + lane * 16);
#pragma unroll
        for (int i = 0; i < 4; i++) q[4 * v + i] = r.v[i];
    }
    if (BITS & 1) {
        U2 r = *(const U2*)(chunk + BITS / 2 * 512 + lane * 8);
        q[2 * BITS - 2] = r.v[0];
        q[2 * BITS - 1] = r.v[1];
    }
}

// Columns 2i and 2i + 1 of a lane's 8, to d[8 * (i & 1)] and the 7 words after it: four pairs of
// rows for each column. Odd widths decode four columns at once, when i is even.
template <int BITS>
DEV void decode(const u32* q, int i, u32* d) {
    constexpr int all = 2 * BITS;
    u32* const e = d + 8 * (i & 1);
    if (BITS == 2) dq2(q[i], e);
    if (BITS == 4) {
        dq4(q[2 * i % all], e);
        dq4(q[(2 * i + 1) % all], e + 4);
    }
    if (BITS == 6) dq6(q[3 * i % all], q[(3 * i + 1) % all], q[(3 * i + 2) % all], e);
    if (BITS == 8)
        for (int w = 0; w < 4; w++) dq8(q[(4 * i + w) % all], e + 2 * w);
    if (BITS == 5 && !(i & 1)) dq5(q + (i >> 1) * 5, d);
    if (BITS == 3 && !(i & 1)) dq3(q + (i >> 1) * 3, d);
}

// The scales of columns j and j + 4 of a lane's 8, from its word of q_scale and q_scale_max.
DEV u32 scales(u32 word, int j, u32 most) {
    const u32 root = sub2(pick<0x000f000f>(word >> (4 * j)), H2(0x63fe));  // q + 1
    return mul2(mul2(root, root), most);
}
