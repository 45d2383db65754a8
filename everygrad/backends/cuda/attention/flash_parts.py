"""The common parts of attention kernels, as CUDA C++ text without headers, PTX where needed.

    INTRINSICS   single instructions: copies, loads of fragments, matrix products of one warp
    HOPPER_INTRINSICS   those that only sm_90a has; `wgmma(n, type)` writes its matrix products
    COMMON       parameters, rows of statistics, masks, indices of a block and its tiles

A warp holds 16 rows of a matrix as `x[columns / 8][4]`: lane 4 g + t has the columns 2 t and 2 t +
1 of each eight, of row g in the first two elements and of row g + 8 in the other two. This is the
accumulator layout of `mma` and `wgmma`, so all kernels share the code between two products.
"""

from __future__ import annotations

INTRINSICS = r"""
typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;
typedef long long i64;
#define DEV __device__ __forceinline__
#define DEV_METHOD __device__ __forceinline__
#define SHARED_BASE(name) \
    extern __shared__ char arena[]; \
    const u32 name = ((u32)__cvta_generic_to_shared(arena) + 1023) & ~1023u;

DEV float exp2_of(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DEV float log2_of(float x) {
    float y;
    asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DEV float infinity() { return __int_as_float(0x7f800000); }
DEV float across(float x, int lanes) { return __shfl_xor_sync(0xffffffffu, x, lanes); }
DEV bool anywhere(bool x) { return __any_sync(0xffffffffu, x); }

#if HALVES
#if BFLOAT
#define HALF "bf16"
DEV float wide(u16 x) { return __uint_as_float((u32)x << 16); }
#else
#define HALF "f16"
DEV float wide(u16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
    return y;
}
#endif
DEV u32 packed(float low, float high) {
    u32 y;
    asm("cvt.rn." HALF "x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}
DEV void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32." HALF "." HALF ".f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
DEV void fragments(u32 (&r)[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
DEV void fragments_trans(u32 (&r)[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
#endif

DEV void put32(u32 at, u32 x) {
    asm volatile("st.shared.u32 [%0], %1;" :: "r"(at), "r"(x) : "memory");
}
DEV void put64(u32 at, float x, float y) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" :: "r"(at), "f"(x), "f"(y) : "memory");
}
DEV float2 take64(u32 at) {
    float2 x;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(at) : "memory");
    return x;
}
DEV float4 take128(u32 at) {
    float4 x;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
        : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "r"(at) : "memory");
    return x;
}
// 16 bytes from global to shared memory, of which `bytes` are read and the rest are zero
DEV void copy16(u32 to, const void* from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
        :: "r"(to), "l"(__cvta_generic_to_global(from)), "r"(bytes) : "memory");
}
DEV void copies_end() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING> DEV void copies_wait() {
    asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory");
}
"""

HOPPER_INTRINSICS = r"""
struct __align__(64) TensorMap { u64 words[16]; };

DEV void barrier_make(u32 at, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(at), "r"(count) : "memory");
}
DEV void barriers_made() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DEV void barrier_expect(u32 at, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
        :: "r"(at), "r"(bytes) : "memory");
}
DEV void barrier_arrive(u32 at) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(at) : "memory");
}
DEV void barrier_wait(u32 at, u32 parity) {
    asm volatile(
        "{\n.reg .pred done;\n"
        "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}" :: "r"(at), "r"(parity) : "memory");
}
// TMA: a box of a tensor to shared memory; zero outside the tensor
DEV void copy_box(u32 to, const TensorMap* map, int x, int y, int z, int w, u32 barrier) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%3, %4, %5, %6}], [%2];"
        :: "r"(to), "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}
DEV void copy_line(u32 to, const void* from, u32 bytes, u32 barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
        :: "r"(to), "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier) : "memory");
}
DEV void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEV void products_end() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> DEV void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(PENDING) : "memory");
}
// accumulators are valid only after the wait: this keeps the compiler from reading them before
DEV void settle(float& x) { asm volatile("" : "+f"(x) :: "memory"); }
"""


def wgmma(columns: int, half: str) -> str:
    """d += a b for 64 rows and `columns` columns, 16 terms at a time.

    `times_rows`: a and b in shared memory, both K-major. `mix_rows`: a in registers, b MN-major.
    """
    count = columns // 2
    sums = ", ".join(f"%{i}" for i in range(count))
    outs = ", ".join(f'"+f"(d[{i // 4}][{i % 4}])' for i in range(count))
    name = f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{half}.{half}"

    def function(title: str, a: str, operands: list[str], transposed: str) -> str:
        b, flag = count + len(operands), count + len(operands) + 1
        left = ", ".join(f"%{count + i}" for i in range(len(operands)))
        left = left if len(operands) == 1 else "{" + left + "}"
        given = ", ".join((*operands, '"l"(b)', '"r"(more)'))
        return f"""
DEV void {title}(float (&d)[{columns // 8}][4], {a}, u64 b, int more) {{
    asm volatile(
        "{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{flag}, 0;\\n"
        "{name} {{{sums}}}, "
        "{left}, %{b}, p, 1, 1, {transposed};\\n}}"
        : {outs}
        : {given});
}}
"""

    regs = [f'"r"(a[{i}])' for i in range(4)]
    return function("times_rows", "u64 a", ['"l"(a)'], "0, 0") + function(
        "mix_rows", "const u32 (&a)[4]", regs, "1"
    )


COMMON = r"""
struct __align__(64) Params {
#if HOPPER
    TensorMap maps[4];  // q, k, v, g
#endif
    const void *q, *k, *v, *g, *mask;
    void *out, *dq, *dk, *dv;
    float *lse, *delta;  // (batch, heads, LSE_LINES or 1, padded): lse in powers of 2, +inf where
                         // nothing is seen
    i64 q_steps[3], k_steps[3], v_steps[3], g_steps[3], out_steps[3];  // batch, head, token
    i64 dq_steps[3], dk_steps[3], dv_steps[3], mask_steps[4];
    int heads, group, queries, keys, width, depth, padded;
    float scale;
};

#define NT (COLS / 8)
#define DT (WIDE / 8)
#define UNIT_WARPS (UNIT / (16 * MT))
#define LOG2E 1.4426950408889634f
#define LSE_LINES (MASK ? 2 : 1)  // of a head: lse, or the largest score and the rest

#if HALVES
typedef u16 elem;
#define ROW_BYTES (2 * WIDE)
#else
typedef float elem;
#define ROW_BYTES (4 * WIDE + 16)
DEV float wide(float x) { return x; }
#endif
#define TILE(rows) ((rows) * ROW_BYTES)

// rows of q against columns of k, or, in the kernel that holds keys, the reverse
struct Place {
    int batch, head, source;
    DEV_METHOD Place(const Params& p, int pair) {
        batch = pair / p.heads, head = pair % p.heads, source = head / p.group;
    }
};

DEV int lane() { return threadIdx.x & 31; }
DEV int warp() { return threadIdx.x >> 5; }
DEV int unit() { return warp() / UNIT_WARPS; }
// the row, within the block, of a thread's first accumulator in tile m; the other is 8 below
DEV int first_row(int m) { return warp() * 16 * MT + m * 16 + (lane() >> 2); }
DEV int least(int x, int y) { return x < y ? x : y; }
DEV int tiles(int count, int size) { return (count + size - 1) / size; }

DEV float quad_max(float x) {
    x = fmaxf(x, across(x, 1));
    return fmaxf(x, across(x, 2));
}
DEV float quad_sum(float x) {
    x += across(x, 1);
    return x + across(x, 2);
}

#if MASK
// what the mask adds to a score, in base 2
DEV float mask_at(const Params& p, const Place& at, int query, int key) {
    if (query >= p.queries || key >= p.keys) return 0.0f;
    const i64 i = at.batch * p.mask_steps[0] + at.head * p.mask_steps[1]
        + query * p.mask_steps[2] + key * p.mask_steps[3];
#if MASK == 1
    // only -inf masks out: the least finite number must not overflow to it
    const float x = wide(((const elem*)p.mask)[i]), y = x * LOG2E;
    return y == -infinity() && x != y ? -3.4028235e38f : y;
#else
    return ((const unsigned char*)p.mask)[i] ? 0.0f : -infinity();
#endif
}
#endif

// Scores as they are compared: already scaled where a mask or a negative scale requires it.
DEV float finished(const Params& p, const Place& at, float s, int query, int key, bool edge) {
#if SCALED
    s *= p.scale * LOG2E;
#endif
#if MASK
    s += mask_at(p, at, query, key);
#endif
    return edge && (key >= p.keys || (CAUSAL && key > query)) ? -infinity() : s;
}
#if SCALED
#define STEEP(p) 1.0f
#else
#define STEEP(p) ((p).scale * LOG2E)
#endif

// the tile's scores against the block's queries, as they are compared
DEV void finish(
    const Params& p, const Place& at, float (&s)[MT][NT][4], int first, int own, int key
) {
    const bool edge = key + COLS > p.keys || (CAUSAL && key + COLS > own);
    if (SCALED || edge)
        #pragma unroll
        for (int i = 0; i < MT * NT * 4; ++i) {
            float& x = s[i / (4 * NT)][i / 4 % NT][i % 4];
            const int query = first + first_row(i / (4 * NT)) + 4 * (i & 2);
            x = finished(
                p, at, x, query, key + 8 * (i / 4 % NT) + 2 * (lane() & 3) + (i & 1), edge);
        }
}
"""
