// Functions for words of two float16 numbers.

DEV u32 join(u32 a, u32 b, u32 i, u32 j) {  // halves i of a, j of b
    return (a >> 16 * i & 0xffff) | (b >> 16 * j) << 16;
}
DEV float number(const u32* x, u32 i) { return i & 1 ? high(x[i / 2]) : low(x[i / 2]); }
DEV float silu(float a) { return a / (1.0f + exponential(-a)); }
