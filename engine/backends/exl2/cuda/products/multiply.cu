// y = x W for EXL2 weights and up to 8 * TT rows of x, on tensor cores. The weights are A in
// m16n8k16, and x is B, so that 8 rows of x cost as much as one.
//
// The work, in words of weights, is divided into equal shares, one for each block. The warps of a
// block split a share along the input rows (WK), or are side by side over x (WN). If several blocks
// share a tile, the last of them sums it in a fixed order, so results don't depend on timing. The
// same applies to the tiles of the same columns of gate and up (pair); their last block also
// multiplies them.
//
// TT: rows of x, in groups of eight. WN: warps side by side, 64 columns each. WK: warps along the
// input rows. STAGES: chunks in flight. PDL: begin before the previous kernel has ended (compute
// capability 9.0). STAGED, for few rows: x is in its natural order and may not be normalized.
// Before multiplying, a block copies the part of x that it needs to shared memory, in the order of
// the weights' rows.
#ifndef PDL
#define PDL 0
#endif
#ifndef STAGED
#define STAGED 0
#endif
#define MINB (TT == 1 && WN * WK < 16 ? 16 / (WN * WK) : 1)  // at most 128 registers for few rows
#define PAIRED (TT == 1)  // whether a launch may have a pair
#define SCALE_ACC (TT <= 2)  // scale the sums for few rows, the weights for many

#include <instructions.cuh>

#include <halves.cuh>
#include <weights.cuh>

struct Params {
    Mat m[3];
    float* ws;      // sums of shared tiles: two places for each block or, for pairs, one for each
                    // block and tile
    u32* counters;  // of finished shares of a tile or a pair; 0 between launches
    u32 num, total, rows,
        slot;  // matrices; words per column of all; of x; bytes of a stage's weights
    u32 pair;  // whether the first matrix's out is silu(x W0) * x W1
    // only if STAGED
    float eps;          // of the norm
    const u32* weight;  // of the norm, or null
};

DEV void sync_k(int kg) {
    if (WN == 1)
        sync_warp();
    else
        sync_some(kg + 1, WN * 32);
}

// a tile of 16 columns (2i, 2i + 1 of each lane's 8): 8 pairs
DEV void tile16(const u32* d_, const u32* scale, int i, const u32 (*b)[4], float (*acc)[TT][4]) {
    u32 d[8];
#pragma unroll
    for (int p = 0; p < 8; p++) d[p] = SCALE_ACC ? d_[p] : mul2(d_[p], scale[2 * i + (p >> 2)]);
    const u32 a0[4] = {d[0], d[4], d[1], d[5]}, a1[4] = {d[2], d[6], d[3], d[7]};
#pragma unroll
    for (int t = 0; t < TT; t++) mma(acc[i][t], a0, b[t]);
#pragma unroll
    for (int t = 0; t < TT; t++) mma(acc[i][t], a1, b[t] + 2);
}

template <int BITS>
DEV void chunk(const char* slot, int lane, const u32* scale, const u32 (*b)[4],
               float (*acc)[TT][4]) {
    u32 q[2 * BITS], d[16];
    read<BITS>(slot, lane, q);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        decode<BITS>(q, i, d);
        tile16(d + 8 * (i & 1), scale, i, b, acc);
    }
}

struct Place {
    u32 m, tile, k;
};  // of a chunk

DEV Place place(const Params& p, u32 pos) {  // the first chunk that begins at or after pos
    Place r = {0, 0, 0};
    if (pos >= p.total) {
        r.m = p.num;
        return r;
    }
    while (r.m + 1 < p.num && pos >= p.m[r.m + 1].base) r.m++;
    const Mat& m = p.m[r.m];
    u32 rest = pos - m.base;
    r.tile = rest / m.cost;
    rest -= r.tile * m.cost;
    u32 i = 0;
    while (i + 1 < m.num_runs && rest >= m.runs[i + 1].prefix) i++;
    r.k = m.runs[i].start + (rest - m.runs[i].prefix + m.runs[i].bits - 1) / m.runs[i].bits;
    return r;
}

struct Walk {
    u32 next, start, bits, mask, shift, group, prefix;
};  // the run of a chunk, in registers

DEV void enter(Walk& w, const Mat& m, u32 k) {
    u32 i = 0;
    while (i + 1 < m.num_runs && k >= m.runs[i + 1].start) i++;
    const Run& r = m.runs[i];
    w.next = i + 1 < m.num_runs ? m.runs[i + 1].start : ~0u;
    w.start = r.start;
    w.bits = r.bits;
    w.shift = r.shift;
    w.mask = (1u << r.shift) - 1;
    w.group = r.group;
    w.prefix = r.prefix;
}

DEV u32 quotient(u64 a, u32 b) { return a >> 32 ? (u32)(a / b) : (u32)a / b; }

struct Sharers {
    u32 first, last;
};  // of a tile: blocks

DEV Sharers sharers(const Params& p, const Mat& m, u32 tile, u32 blocks) {
    const u32 first = m.base + tile * m.cost, last = first + m.cost - m.runs[m.num_runs - 1].bits;
    return {quotient((u64)(first + 1) * blocks - 1, p.total),
            quotient((u64)(last + 1) * blocks - 1, p.total)};
}

// Copies the columns of x for the weights' chunks k0 to k1 to `to`: 32 of each row for each chunk.
// With p.weight, they are columns of x's RMSNorm; as in between.cu, x is clamped. Only weights and
// orders are read before the previous kernel has ended.
DEV void stage(const Params& p, const Mat& m, u32 k0, u32 k1, u32* to, bool& waited) {
    const u32 tid = threadIdx.x, threads = WN * WK * 32, warps = WN * WK, num = (k1 - k0) * 4;
    U4* const x = (U4*)to;                            // 8 columns each
    U4* const weights = x + m.chunks * p.rows * 4;    // of the norm
    float* const sums = (float*)(weights + m.chunks * 4);  // of squares, per row and warp
    auto place = [&](u32 i, u32 row) { return (i >> 2) * p.rows * 4 + row * 4 + (i & 3); };
    for (u32 i = tid; i < num; i += threads) {
        const U4* const from = (const U4*)m.perm + (k0 * 4 + i) * 2;
        const U4 at[2] = {from[0], from[1]};
        U4 order, w;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const u32 a = at[j >> 1].v[2 * (j & 1)], b = at[j >> 1].v[2 * (j & 1) + 1];
            order.v[j] = a | b << 16;
            if (p.weight) w.v[j] = join(p.weight[a / 2], p.weight[b / 2], a & 1, b & 1);
        }
        x[place(i, 0)] = order;  // until row 0 takes its place
        if (p.weight) weights[i] = w;
    }
    if (PDL && !waited) await_kernel_before();
    waited = true;
    if (p.weight) {
        for (u32 row = 0; row < p.rows; row++) {
            const U4* const from = (const U4*)(m.x + (u64)row * m.ldx);
            float sum = 0.0f;
            for (u32 i = tid; i < m.chunks * 4; i += threads) {
                const U4 v = from[i];
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const float a = sat(low(v.v[j])), b = sat(high(v.v[j]));
                    sum += a * a + b * b;
                }
            }
            for (int distance = 16; distance; distance >>= 1) sum += shuffle_xor(sum, distance);
            if (!(tid & 31)) sums[row * warps + (tid >> 5)] = sum;
        }
        sync_block();
    }
    for (u32 row = p.rows; row-- > 0;) {
        const u32* const from = (const u32*)(m.x + (u64)row * m.ldx);
        float sum = 0.0f;
        if (p.weight)
            for (u32 i = 0; i < warps; i++) sum += sums[row * warps + i];
        const float scale = inverse_root(sum / (m.chunks * 32) + p.eps);
        for (u32 i = tid; i < num; i += threads) {
            const U4 order = x[place(i, 0)];
            U4 v, w;
            if (p.weight) w = weights[i];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const u32 a = order.v[j] & 0xffff, b = order.v[j] >> 16;
                v.v[j] = join(from[a / 2], from[b / 2], a & 1, b & 1);
                if (p.weight)
                    v.v[j] = pack(sat(low(v.v[j])) * scale * low(w.v[j]),
                                  sat(high(v.v[j])) * scale * high(w.v[j]));
            }
            x[place(i, row)] = v;
        }
    }
    sync_block();
}

KERNEL(WN * WK * 32, MINB) multiply(CONSTANT Params p) {
    SHARED;
    const bool pair = PAIRED && p.pair;
    SHARED_WORD(flag);  // whether this block is the last one of a tile
    const u32 tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, wn = warp % WN, kg = warp / WN;
    const u32 block = blockIdx.x, blocks = gridDim.x;
    const u32 g = lane >> 2, t4 = lane & 3;
    const u32 xslot = STAGED ? 0 : TT * 512, stage_size = WN * p.slot + xslot;
    char* const mine = smem + kg * STAGES * stage_size;
    if (PDL) let_next_kernel_begin();
    Place at = place(p, (u32)((u64)p.total * block / blocks));
    const Place end = place(p, (u32)((u64)p.total * (block + 1) / blocks));
    bool waited = false;
    const u32 ring_size = WK * STAGES * stage_size, sums_size = WK * TT * 8 * WN * 256;
    u32* const xs_all = (u32*)(smem + (ring_size > sums_size ? ring_size : sums_size));
    const u32* staged = nullptr;  // the order of the staged rows, and their chunks
    u32 staged0 = 0, staged1 = 0;

    while (at.m < p.num &&
           (at.m < end.m ||
            (at.m == end.m && (at.tile < end.tile || (at.tile == end.tile && at.k < end.k))))) {
        const Mat& m = p.m[at.m];
        const u32 k0 = at.k, k1 = at.m == end.m && at.tile == end.tile ? end.k : m.chunks;
        const u32 tile = at.tile;
        at.tile++;
        at.k = 0;
        if (at.tile == m.tiles) {
            at.tile = 0;
            at.m++;
        }
        if (k0 >= k1) continue;

        const u32 a = k0 + (k1 - k0) * kg / WK, e = k0 + (k1 - k0) * (kg + 1) / WK;
        const u32 column = tile * WN + wn;  // in units of 64
        const bool active = WN == 1 || column * 64 < m.n;
        const u32* const wt = m.w + (u64)column * m.cost * 64;
        const u32* const sc = m.scale + column * 8;

        float acc[4][TT][4] = {}, tot[SCALE_ACC ? 4 : 1][SCALE_ACC ? TT : 1][4] = {};
        float fs[8] = {};
        u32 hs[8] = {};

        Walk in, now;  // of the loads, of the computation
        enter(in, m, a);
        enter(now, m, a);
        const char* from =
            (const char*)(wt + (in.prefix + (a - in.start) * in.bits) * 64) + lane * 16;
        const u32 row0 = (wn * 32 + lane) >> 2;
        const char* xfrom =
            m.x + (u64)(row0 < p.rows ? row0 : 0) * m.ldx + a * 64 + (lane & 3) * 16;
        const u32 xstep = WN * 8 * m.ldx;

        auto load_w = [&](u32 k, char* d) {
            if (k >= in.next) enter(in, m, k);
            if (!active) return;
            d += wn * p.slot;
            char* const to = d + lane * 16;
            const u32 size = 256 * in.bits;
#pragma unroll
            for (u32 v = 0; v < 4; v++)
                if (v * 512 + lane * 16 < size) cp16(to + v * 512, from + v * 512);
            from += size;
            const u32 inner = k - in.start;
            if (k == a || !(inner & in.mask)) {
                const u32 group = in.group + (inner >> in.shift);
                if (lane < 8)
                    cp4(d + p.slot - 64 + lane * 4, sc + group * (m.n >> 3) + lane);
                else if (lane == 8)
                    cp4(d + p.slot - 32, m.smax + group);
            }
        };
        auto load_x = [&](char* d) {
            d += WN * p.slot + (wn * 32 + lane) * 16;
#pragma unroll
            for (u32 j = 0; j < (TT + WN - 1) / WN; j++)
                if (TT % WN == 0 || j * WN + wn < TT) {
                    const bool on = row0 + j * WN * 8 < p.rows;
                    cp16z(d + j * WN * 512, on ? xfrom + j * xstep : xfrom, on);
                }
            xfrom += 64;
        };
        if (STAGED) {
            for (u32 s = 0; s < STAGES - 1; s++) {
                if (a + s < e) load_w(a + s, mine + s * stage_size);
                commit();
            }
            if (staged != m.perm || staged0 != k0 || staged1 != k1)
                stage(p, m, k0, k1, xs_all, waited);
            staged = m.perm;
            staged0 = k0;
            staged1 = k1;
        } else if (PDL && !waited) {
            for (u32 s = 0; s < STAGES - 1; s++)
                if (a + s < e) load_w(a + s, mine + s * stage_size);
            if (PDL) await_kernel_before();
            waited = true;
            for (u32 s = 0; s < STAGES - 1; s++) {
                if (a + s < e) load_x(mine + s * stage_size);
                commit();
            }
        } else {
            for (u32 s = 0; s < STAGES - 1; s++) {
                if (a + s < e) {
                    load_x(mine + s * stage_size);
                    load_w(a + s, mine + s * stage_size);
                }
                commit();
            }
        }

        char* const ring = mine + STAGES * stage_size;
        char* head = mine;                              // the stage to compute
        char* tail = mine + (STAGES - 1) * stage_size;  // the stage to load
        for (u32 k = a; k < e; k++) {
            wait<STAGES - 2>();
            sync_k(kg);
            if (k + STAGES - 1 < e) {
                if (!STAGED) load_x(tail);
                load_w(k + STAGES - 1, tail);
            }
            commit();
            tail += stage_size;
            if (tail == ring) tail = mine;
            const char* const s = head + wn * p.slot;
            const char* const xs =
                STAGED ? (const char*)(xs_all + (k - k0) * p.rows * 16) : head + WN * p.slot;
            head += stage_size;
            if (head == ring) head = mine;
            if (k >= now.next) enter(now, m, k);
            if (active) {
                if (k == a || !((k - now.start) & now.mask)) {
                    const u32 word = *(const u32*)(s + p.slot - 64 + g * 4),
                              most = *(const u32*)(s + p.slot - 32);
                    if (SCALE_ACC) {
#pragma unroll
                        for (int i = 0; i < 4; i++)
#pragma unroll
                            for (int t = 0; t < TT; t++)
#pragma unroll
                                for (int c = 0; c < 4; c++) {
                                    tot[i % (SCALE_ACC ? 4 : 1)][t % (SCALE_ACC ? TT : 1)][c] +=
                                        acc[i][t][c] * fs[2 * i + (c >> 1)];
                                    acc[i][t][c] = 0.0f;
                                }
                    }
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        const u32 v = scales(word, j, most);
                        if (SCALE_ACC) {
                            fs[j] = low(v);
                            fs[j + 4] = high(v);
                        } else {
                            hs[j] = same(v, 0);
                            hs[j + 4] = same(v, 1);
                        }
                    }
                }
                u32 b[TT][4];
#pragma unroll
                for (int t = 0; t < TT; t++) {
                    const u32 row = STAGED && t * 8 + g >= p.rows ? 0 : t * 8 + g;
                    U4 v = *(const U4*)(xs + row * 64 + t4 * 16);
#pragma unroll
                    for (int i = 0; i < 4; i++) b[t][i] = v.v[i];
                }
                switch (now.bits) {
                    case 2: chunk<2>(s, lane, hs, b, acc); break;
                    case 3: chunk<3>(s, lane, hs, b, acc); break;
                    case 4: chunk<4>(s, lane, hs, b, acc); break;
                    case 5: chunk<5>(s, lane, hs, b, acc); break;
                    case 6: chunk<6>(s, lane, hs, b, acc); break;
                    default: chunk<8>(s, lane, hs, b, acc); break;
                }
            }
        }
        wait<0>();
        sync_block();  // the pipeline's memory is free

        // sum over the warps along k: [kg][row][column]
        F4* const red = (F4*)smem;
        if (active) {
#pragma unroll
            for (int t = 0; t < TT; t++)
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    float v[8];
#pragma unroll
                    for (int i = 0; i < 4; i++)
#pragma unroll
                        for (int h = 0; h < 2; h++)
                            v[2 * i + h] = SCALE_ACC ? tot[i % (SCALE_ACC ? 4 : 1)]
                                                          [t % (SCALE_ACC ? TT : 1)][2 * h + c] +
                                                           acc[i][t][2 * h + c] * fs[2 * i + h]
                                                     : acc[i][t][2 * h + c];
                    const u32 row = t * 8 + t4 * 2 + c;
                    F4* const d = red + ((kg * TT * 8 + row) * WN + wn) * 16 + g * 2;
                    if (row < p.rows) {
                        d[0] = F4{{v[0], v[1], v[2], v[3]}};
                        d[1] = F4{{v[4], v[5], v[6], v[7]}};
                    }
                }
        }
        sync_block();

        const bool whole = !pair && k0 == 0 && k1 == m.chunks;
        const Mat& to = pair ? p.m[0] : m;
        const u32 width = WN * 16;  // in F4
        const u32 space = TT * 8 * width;
        auto finish = [&](u32 row, u32 c, F4 v) {
            const u32 col = tile * WN * 64 + c * 4;
            if (col >= to.n) return;
            u32* const o = (u32*)(to.out + (u64)row * to.ldo + col * 2);
            if (to.add) {
                U2 old = *(const U2*)o;
                v.v[0] += low(old.v[0]);
                v.v[1] += high(old.v[0]);
                v.v[2] += low(old.v[1]);
                v.v[3] += high(old.v[1]);
            }
            *(U2*)o = U2{
                {pack(sat(v.v[0]), sat(v.v[1])),
                 pack(sat(v.v[2]), sat(v.v[3]))}};  // a deep model's residual may exceed 65504
        };
        F4* const ws = (F4*)p.ws;
        // From one share to the next, either the block or the tile changes, so no two shares of a
        // launch have the same sum of both.
        auto sums = [&](const Mat& of, u32 of_block, bool begins) {
            return ws + (pair ? of_block + of.tile0 + tile : of_block * 2 + begins) * space;
        };
        F4* const own = sums(m, block, !k0);
        for (u32 i = tid; i < p.rows * width; i += WN * WK * 32) {
            const u32 row = i / width, c = i % width;
            F4 v = red[row * width + c];
#pragma unroll
            for (int k = 1; k < WK; k++) {
                F4 o = red[(k * TT * 8 + row) * width + c];
#pragma unroll
                for (int j = 0; j < 4; j++) v.v[j] += o.v[j];
            }
            if (whole)
                finish(row, c, v);
            else
                own[i] = v;
        }
        if (!whole) {
            const Sharers some = sharers(p, to, tile, blocks);
            Sharers others = {1, 0};  // of the pair's second tile
            if (pair) others = sharers(p, p.m[1], tile, blocks);
            fence();
            sync_block();
            if (tid == 0) {
                u32* const counter = p.counters + to.tile0 + tile;
                const u32 shares = some.last - some.first + 1 + others.last - others.first + 1;
                flag = add_atomic(counter, 1u) == shares - 1;
                if (flag) *counter = 0;
            }
            sync_block();
            if (flag) {
                fence();
                auto all = [&](const Mat& of, Sharers of_tile, u32 i) {
                    F4 v = ldcg(sums(of, of_tile.first, true) + i);
                    for (u32 b = of_tile.first + 1; b <= of_tile.last; b++) {
                        F4 o = ldcg(sums(of, b, false) + i);
#pragma unroll
                        for (int j = 0; j < 4; j++) v.v[j] += o.v[j];
                    }
                    return v;
                };
                for (u32 i = tid; i < p.rows * width; i += WN * WK * 32) {
                    F4 v = all(to, some, i);
                    if (pair) {
                        const F4 up = all(p.m[1], others, i);
#pragma unroll
                        for (int j = 0; j < 4; j++) v.v[j] = silu(sat(v.v[j])) * sat(up.v[j]);
                    }
                    finish(i / width, i % width, v);
                }
            }
        }
        sync_block();
    }
}
