// The small kernels between the products of a decode step: norm, gather and activation. Each writes
// in the permuted order that the next product reads. PDL: see multiply.cu.
#ifndef PDL
#define PDL 0
#endif

#include <instructions.cuh>

#include <halves.cuh>

DEV void begin() {
    if (PDL) {
        let_next_kernel_begin();
        await_kernel_before();
    }
}

// y[i] = norm(x)[perm[i]] with RMSNorm, for each of up to 3 permutations; one block for each row.
// The residual may be infinite, so it is clamped to float16's range, as in exllamav2's rms_norm.cu.
#define NORM_THREADS 512
struct Norm {
    const u32* x;
    const u32* weight;
    const u32* perm[3];
    u32* y[3];
    u32 n, num;
    float eps;
};
KERNEL(NORM_THREADS, 1) normalize(CONSTANT Norm p) {
    SHARED;
    u32* const row = (u32*)smem;
    float* const sums = (float*)(row + p.n / 2);
    const u32 tid = threadIdx.x, half = p.n / 2;
    begin();
    const u32* const x = p.x + (u64)blockIdx.x * half;
    float sum = 0.0f;
    for (u32 i = tid; i < half / 4; i += NORM_THREADS) {
        const U4 v = ((const U4*)x)[i];
        ((U4*)row)[i] = v;
        for (int j = 0; j < 4; j++) {
            const float a = sat(low(v.v[j])), b = sat(high(v.v[j]));
            sum += a * a + b * b;
        }
    }
    for (int distance = 16; distance; distance >>= 1) sum += shuffle_xor(sum, distance);
    if (!(tid & 31)) sums[tid >> 5] = sum;
    sync_block();
    sum = 0.0f;
    for (int i = 0; i < NORM_THREADS / 32; i++) sum += sums[i];
    const float scale = inverse_root(sum / p.n + p.eps);
    for (u32 k = 0; k < p.num; k++)
        for (u32 i = tid; i < half; i += NORM_THREADS) {
            const U2 at = ((const U2*)p.perm[k])[i];
            float v[2];
            for (int j = 0; j < 2; j++)
                v[j] = sat(number(row, at.v[j])) * scale * number(p.weight, at.v[j]);
            p.y[k][(u64)blockIdx.x * half + i] = pack(v[0], v[1]);
        }
}

// y[i] = x[perm[i]] for each row (blockIdx.y).
struct Gather {
    const u32* x;
    const u32* perm;
    u32* y;
    u32 n;
};
KERNEL(256, 1) gather(CONSTANT Gather p) {
    const u32 i = blockIdx.x * 256 + threadIdx.x, half = p.n / 2;
    U2 at = {{0, 0}};
    if (i < half) at = ((const U2*)p.perm)[i];
    begin();
    if (i >= half) return;
    const u32* const x = p.x + (u64)blockIdx.y * half;
    p.y[(u64)blockIdx.y * half + i] =
        join(x[at.v[0] / 2], x[at.v[1] / 2], at.v[0] & 1, at.v[1] & 1);
}

// y = silu(gate) * up, for n words.
struct Activate {
    const u32* gate;
    const u32* up;
    u32* y;
    u32 n;
};
KERNEL(256, 1) activate(CONSTANT Activate p) {
    const u32 i = blockIdx.x * 256 + threadIdx.x;
    begin();
    if (i >= p.n) return;
    const u32 gate = p.gate[i], up = p.up[i];
    p.y[i] = pack(sat(silu(low(gate)) * low(up)), sat(silu(high(gate)) * high(up)));
}
