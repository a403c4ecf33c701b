// The GPU instructions that the kernels use, as functions. Each word holds two float16 numbers.
// tests/engine/products has the same functions for a CPU.
typedef unsigned int u32;
typedef unsigned long long u64;

#define DEV static __device__ __forceinline__
DEV u32 sub2(u32 a, u32 b) {
    u32 d;
    asm("sub.f16x2 %0,%1,%2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
DEV u32 mul2(u32 a, u32 b) {
    u32 d;
    asm("mul.f16x2 %0,%1,%2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
DEV u32 fma2(u32 a, u32 b, u32 c) {
    u32 d;
    asm("fma.rn.f16x2 %0,%1,%2,%3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
template <u32 MASK>
DEV u32 pick(u32 a) {  // (a & MASK) | 1024, 1024
    u32 d;
    asm("lop3.b32 %0,%1,%2,%3,0xea;" : "=r"(d) : "r"(a), "n"(MASK), "r"(0x64006400));
    return d;
}
DEV float low(u32 a) {
    float f;
    asm("{.reg .f16 l,h; mov.b32 {l,h},%1; cvt.f32.f16 %0,l;}" : "=f"(f) : "r"(a));
    return f;
}
DEV float high(u32 a) {
    float f;
    asm("{.reg .f16 l,h; mov.b32 {l,h},%1; cvt.f32.f16 %0,h;}" : "=f"(f) : "r"(a));
    return f;
}
DEV u32 pack(float a, float b) {
    u32 d;
    asm("cvt.rn.f16x2.f32 %0,%2,%1;" : "=r"(d) : "f"(a), "f"(b));
    return d;
}
DEV float sat(float a) {  // float16's range; NaN stays NaN
    float d;
    asm("{.reg .f32 t; min.NaN.f32 t,%1,0f477FE000; max.NaN.f32 %0,t,0fC77FE000;}"
        : "=f"(d)
        : "f"(a));
    return d;
}
DEV u32 same(u32 a, int h) { return __byte_perm(a, a, h ? 0x3232 : 0x1010); }
DEV u32 halves(u32 a, u32 b, int h) { return __byte_perm(a, b, h ? 0x7632 : 0x5410); }
DEV void mma(float* c, const u32* a, const u32* b) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
DEV u32 saddr(const void* p) { return (u32)__cvta_generic_to_shared(p); }
DEV void cp16(void* d, const void* s) {
    asm volatile("cp.async.cg.shared.global [%0],[%1],16;" ::"r"(saddr(d)), "l"(s) : "memory");
}  // no L2 policy: evict_first makes this an illegal instruction on Hopper
DEV void cp16z(void* d, const void* s, bool on) {
    asm volatile("cp.async.ca.shared.global [%0],[%1],16,%2;" ::"r"(saddr(d)), "l"(s),
                 "r"(on ? 16 : 0)
                 : "memory");
}
DEV void cp4(void* d, const void* s) {
    asm volatile("cp.async.ca.shared.global [%0],[%1],4;" ::"r"(saddr(d)), "l"(s) : "memory");
}
DEV void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
DEV void wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
DEV float inverse_root(float a) { return rsqrtf(a); }
DEV float exponential(float a) { return __expf(a); }
DEV float shuffle_xor(float a, int distance) { return __shfl_xor_sync(~0u, a, distance); }
DEV void sync_block() { __syncthreads(); }
DEV void sync_warp() { __syncwarp(); }
DEV void sync_some(int barrier, int threads) {
    asm volatile("bar.sync %0,%1;" ::"r"(barrier), "r"(threads) : "memory");
}
DEV void await_kernel_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
DEV void let_next_kernel_begin() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
struct alignas(16) U4 {
    u32 v[4];
};
struct alignas(8) U2 {
    u32 v[2];
};
struct alignas(16) F4 {
    float v[4];
};
DEV F4 ldcg(const F4* p) {
    F4 r;
    asm volatile("ld.global.cg.v4.f32 {%0,%1,%2,%3},[%4];"
                 : "=f"(r.v[0]), "=f"(r.v[1]), "=f"(r.v[2]), "=f"(r.v[3])
                 : "l"(p)
                 : "memory");
    return r;
}

#define KERNEL(threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks)
#define CONSTANT const __grid_constant__
DEV void fence() { __threadfence(); }
DEV u32 add_atomic(u32* p, u32 v) { return atomicAdd(p, v); }
#define SHARED extern __shared__ __align__(128) char smem[]
#define SHARED_WORD(name) __shared__ u32 name
