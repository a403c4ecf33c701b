// The functions of products/instructions.cuh for a CPU: each GPU thread of a block is a fiber.
//
// Copies by cp.async are done as late as they may be, at the wait for them: a kernel that reads too
// early finds old bytes. Shared memory begins as NaN. Unaligned copies end the program.
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <cmath>
#include <deque>
#include <vector>

typedef uint32_t u32;
typedef unsigned long long u64;
#define DEV static inline
#define KERNEL(threads, blocks) static void
#define CONSTANT const
#define SHARED char* const smem = shared_memory
#define SHARED_WORD(name) static u32 name

struct Dim {
    unsigned x, y;
};
static Dim threadIdx, blockIdx, gridDim;
static char* shared_memory;
static unsigned num_threads;

struct alignas(16) U4 {
    u32 v[4];
};
struct alignas(8) U2 {
    u32 v[2];
};
struct alignas(16) F4 {
    float v[4];
};

DEV _Float16 half_of(u32 a, int i) {
    const uint16_t bits = (uint16_t)(a >> (16 * i));
    _Float16 h;
    memcpy(&h, &bits, 2);
    return h;
}
DEV u32 word_of(_Float16 l, _Float16 h) {
    uint16_t a, b;
    memcpy(&a, &l, 2);
    memcpy(&b, &h, 2);
    return a | (u32)b << 16;
}
DEV u32 sub2(u32 a, u32 b) {
    return word_of(half_of(a, 0) - half_of(b, 0), half_of(a, 1) - half_of(b, 1));
}
DEV u32 mul2(u32 a, u32 b) {
    return word_of(half_of(a, 0) * half_of(b, 0), half_of(a, 1) * half_of(b, 1));
}
DEV _Float16 fma1(u32 a, u32 b, u32 c, int i) {
    return (_Float16)((double)half_of(a, i) * (double)half_of(b, i) + (double)half_of(c, i));
}
DEV u32 fma2(u32 a, u32 b, u32 c) { return word_of(fma1(a, b, c, 0), fma1(a, b, c, 1)); }
template <u32 MASK>
DEV u32 pick(u32 a) {
    return (a & MASK) | 0x64006400u;
}
DEV float low(u32 a) { return (float)half_of(a, 0); }
DEV float high(u32 a) { return (float)half_of(a, 1); }
DEV float sat(float a) { return a > 65504.0f ? 65504.0f : a < -65504.0f ? -65504.0f : a; }
DEV u32 pack(float a, float b) { return word_of((_Float16)a, (_Float16)b); }
DEV u32 halves(u32 a, u32 b, int h) { return (a >> 16 * h & 0xffff) | (b >> 16 * h) << 16; }
DEV u32 same(u32 a, int h) { return halves(a, a, h); }
DEV float inverse_root(float a) { return 1.0f / sqrtf(a); }
DEV float exponential(float a) { return expf(a); }

// ---- fibers
struct Copy {
    void* to;
    const void* from;
    int bytes, zeros;
};
struct Fiber {
    jmp_buf place;
    bool has_begun = false, is_done = false;
    std::deque<std::vector<Copy>> groups;
    std::vector<Copy> open;
};
static std::vector<Fiber*> fibers;
static unsigned current;

// ucontext begins a fiber. Then jumps are faster, since they leave the signal mask as it is.
static jmp_buf scheduler;
static void yield() {
    if (!_setjmp(fibers[current]->place)) _longjmp(scheduler, 1);
}
static void resume(Fiber* fiber, void (*enter)(), char* stack, size_t size) {
    if (_setjmp(scheduler)) return;
    if (fiber->has_begun) _longjmp(fiber->place, 1);
    fiber->has_begun = true;
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = size;
    context.uc_link = nullptr;
    makecontext(&context, enter, 0);
    setcontext(&context);
}

struct Barrier {
    unsigned waiting = 0, round = 0;
};
static Barrier of_block, of_some[16], of_warps[16];

static void meet(Barrier& barrier, unsigned count) {
    const unsigned round = barrier.round;
    if (++barrier.waiting == count) {
        barrier.waiting = 0;
        barrier.round++;
        return;
    }
    while (barrier.round == round) yield();
}
static void sync_block() { meet(of_block, num_threads); }
static void sync_warp() { meet(of_warps[current / 32], 32); }
static void sync_some(int barrier, int threads) { meet(of_some[barrier], threads); }
DEV float shuffle_xor(float a, int distance) {
    static float seen[16][32];
    const unsigned warp = current / 32, lane = current % 32;
    seen[warp][lane] = a;
    sync_warp();
    const float found = seen[warp][lane ^ distance];
    sync_warp();
    return found;
}
DEV void mma(float* c, const u32* a, const u32* b) {  // m16n8k16
    static float as[16][16][16], bs[16][16][8];       // [warp][row][k], [warp][k][column]
    const unsigned warp = current / 32, lane = current % 32, g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; i++)
        for (int h = 0; h < 2; h++)
            as[warp][g + 8 * (i & 1)][2 * t + h + 8 * (i >> 1)] = (float)half_of(a[i], h);
    for (int i = 0; i < 2; i++)
        for (int h = 0; h < 2; h++) bs[warp][2 * t + h + 8 * i][g] = (float)half_of(b[i], h);
    sync_warp();
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 16; k++)
            c[i] += as[warp][g + 8 * (i >> 1)][k] * bs[warp][k][2 * t + (i & 1)];
    sync_warp();
}

// ---- memory
DEV void copy(void* to, const void* from, int bytes, int zeros) {
    if (((uintptr_t)to | (uintptr_t)from) % (bytes + zeros)) {
        fprintf(stderr, "unaligned copy\n");
        abort();
    }
    fibers[current]->open.push_back({to, from, bytes, zeros});
}
DEV void cp16(void* to, const void* from) { copy(to, from, 16, 0); }
DEV void cp16z(void* to, const void* from, bool on) { copy(to, from, on ? 16 : 0, on ? 0 : 16); }
DEV void cp4(void* to, const void* from) { copy(to, from, 4, 0); }
DEV void commit() {
    Fiber* const fiber = fibers[current];
    fiber->groups.push_back(std::move(fiber->open));
    fiber->open.clear();
}
template <int N>
DEV void wait() {
    auto& groups = fibers[current]->groups;
    while (groups.size() > N) {
        for (const Copy& c : groups.front()) {
            memcpy(c.to, c.from, c.bytes);
            memset((char*)c.to + c.bytes, 0, c.zeros);
        }
        groups.pop_front();
    }
}
DEV void await_kernel_before() {}
DEV void let_next_kernel_begin() {}
DEV void fence() {}
DEV F4 ldcg(const F4* p) { return *p; }
DEV u32 add_atomic(u32* p, u32 v) {
    const u32 old = *p;
    *p += v;
    return old;
}

// ---- launches: one block after the other
extern "C" int is_reversed;
int is_reversed = 0;  // whether the last block is the first to run
template <class P, void (*KERNEL_OF)(const P)>
static void run_fiber() {
    extern const void* parameters;
    KERNEL_OF(*(const P*)parameters);
    fibers[current]->is_done = true;
    for (;;) yield();
}
const void* parameters;

static void run_block(void (*enter)()) {
    static const size_t size = 1 << 15;
    static char* const stacks = (char*)malloc(512 * size);
    for (unsigned i = 0; i < num_threads; i++) fibers.push_back(new Fiber);
    for (bool is_busy = true; is_busy;) {
        is_busy = false;
        for (current = 0; current < num_threads; current++)
            if (!fibers[current]->is_done) {
                is_busy = true;
                threadIdx = {current, 0};
                resume(fibers[current], enter, stacks + current * size, size);
            }
    }
    for (Fiber* fiber : fibers) delete fiber;
    fibers.clear();
}

template <class P, void (*KERNEL_OF)(const P)>
static void launch(const P* p, unsigned x, unsigned y, unsigned threads, unsigned shared) {
    parameters = p;
    gridDim = {x, y};
    num_threads = threads;
    std::vector<char> memory(shared + 128);
    shared_memory = (char*)(((uintptr_t)memory.data() + 127) & ~(uintptr_t)127);
    for (blockIdx.y = 0; blockIdx.y < y; blockIdx.y++)
        for (unsigned i = 0; i < x; i++) {
            blockIdx.x = is_reversed ? x - 1 - i : i;
            memset(shared_memory, 0xff, shared);
            run_block(run_fiber<P, KERNEL_OF>);
        }
}
#define LAUNCHER(name, P)                                                               \
    extern "C" void launch_##name(const P* p, unsigned x, unsigned y, unsigned threads, \
                                  unsigned shared) {                                    \
        launch<P, name>(p, x, y, threads, shared);                                      \
    }
