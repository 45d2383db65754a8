"""Three ways to multiply tiles, behind one set of functions, as CUDA C++ text.

    AMPERE   bf16 and f16 by `mma` of single warps, tiles by `cp.async`: sm_80 and newer
    HOPPER   bf16 and f16 by `wgmma` of four warps, tiles by TMA: sm_90a
    PLAIN    float32 by multiply-adds, in full precision: everywhere

The interface that a kernel's text may use:

    Source, source_of(...)     where a tile is read from
    load<R>(to, source, row)   R rows into shared memory, zeros for those outside
    load_line(to, from)        COLS floats of statistics
    fill_begin, fill_end       around the loads of one tile; only threads for which fill_begin
                               is true load
    wait_once, wait_full, release
    Rows                       a warp's or warp group's rows of a tile, the left operand of scores
    scores(s, rows, tile)      s = rows tile^T; valid after `sums_wait<0>(s)`
    Weights                    accumulators converted to the left operand of a product
    mix(o, weights, tile)      o += weights tile; valid after `sums_wait<0>(o)`
    store(tile, sums, ...)     rows of accumulators to global memory

Tiles of halves are blocks of 64 columns, in rows of 128 bytes; chunk c of 16 bytes of row r is
stored at c ^ (r % 8). This is TMA's 128-byte swizzle, which avoids bank conflicts.
"""

from __future__ import annotations

# shared by the two engines for halves
_HALVES = r"""
// the address of the 16-byte `chunk` of `row` in a tile of R rows
template <int R> DEV u32 place_of(u32 tile, int row, int chunk) {
    return tile + (chunk >> 3) * (R * 128) + row * 128 + (((chunk & 7) ^ (row & 7)) << 4);
}

// The left operand of a product from a warp's accumulators: 16 terms from two 8-column tiles.
DEV void as_left(u32 (&a)[4], const float (&low)[4], const float (&high)[4]) {
    a[0] = packed(low[0], low[1]), a[1] = packed(low[2], low[3]);
    a[2] = packed(high[0], high[1]), a[3] = packed(high[2], high[3]);
}

// weights as the left operand of a product, and as floats again, rounded as the product sees them
struct Weights {
    u32 parts[MT][COLS / 16][4];
    DEV_METHOD void take(const float (&s)[MT][NT][4]) {
        #pragma unroll
        for (int i = 0; i < MT * COLS / 16; ++i) {
            const int m = i / (COLS / 16), k = i % (COLS / 16);
            as_left(parts[m][k], s[m][2 * k], s[m][2 * k + 1]);
        }
    }
    DEV_METHOD float at(int m, int n, int i) const {
        const u32 pair = parts[m][n / 2][2 * (n & 1) + i / 2];
        return wide((u16)(i & 1 ? pair >> 16 : pair));
    }
};

// Rows of accumulators, each times its factor, to global memory: through the warp's own rows of a
// tile that is no longer read, so that 16 bytes are written at a time.
template <int R> DEV void store(
    u32 tile, const float (&sums)[MT][DT][4], const float (&factor)[MT][2],
    void* to, i64 step, int row, int rows, int columns
) {
    __syncwarp();
    #pragma unroll
    for (int m = 0; m < MT; ++m)
        #pragma unroll
        for (int d = 0; d < DT; ++d)
            #pragma unroll
            for (int r = 0; r < 2; ++r)
                put32(place_of<R>(tile, first_row(m) + 8 * r, d) + 4 * (lane() & 3),
                    packed(sums[m][d][2 * r] * factor[m][r], sums[m][d][2 * r + 1] * factor[m][r]));
    __syncwarp();
    const bool whole = (columns & 7) == 0;
    for (int i = lane(); i < 16 * MT * DT; i += 32) {
        const int own = warp() * 16 * MT + i / DT, chunk = i % DT, left = columns - 8 * chunk;
        if (row + own >= rows || left <= 0) continue;
        const float4 x = take128(place_of<R>(tile, own, chunk));
        elem* at = (elem*)to + (row + own) * step + 8 * chunk;
        if (whole) {
            *(float4*)at = x;
        } else {
            const u16* parts = (const u16*)&x;
            #pragma unroll
            for (int e = 0; e < 8; ++e) if (e < left) at[e] = parts[e];
        }
    }
}
"""

# shared by the two engines that copy by threads
_COPIES = r"""
struct Source { const char* base; i64 step; int rows, columns; };
#define MAP_OF(name) 0
DEV Source source_of(
    int, const void* x, const i64 (&steps)[3], int batch, int head, int rows, int columns
) {
    const elem* base = (const elem*)x + batch * steps[0] + head * steps[1];
    return {(const char*)base, steps[2] * (i64)sizeof(elem), rows, columns};
}
DEV void pipe_begin(u32) {}
DEV bool fill_begin(u32, int, u32) { return true; }
DEV void fill_end() { copies_end(); }
DEV bool once_begin(u32, u32) { return true; }
DEV void once_end() { copies_end(); }
DEV void wait_once(u32) { copies_wait<STAGES - 1>(); __syncthreads(); }
DEV void wait_full(u32, int) { copies_wait<STAGES - 2>(); __syncthreads(); }
DEV void release(u32, int) {}
DEV void load_line(u32 to, const float* from, u32) {
    if (threadIdx.x < COLS / 4) copy16(to + 16 * threadIdx.x, from + 4 * threadIdx.x, 16);
}
#define PIPE_BYTES 0
#define FULL(pipe, it) 0
#define ONCE(pipe) 0
template <int PENDING, int N> DEV void sums_wait(float (&)[MT][N][4]) {}
"""

AMPERE = (
    _HALVES
    + _COPIES
    + r"""
template <int R> DEV void load(u32 tile, const Source& from, int row, u32) {
    #pragma unroll
    for (int i = threadIdx.x; i < R * DT; i += THREADS) {
        const int r = i / DT, chunk = i % DT;
        const bool inside = row + r < from.rows && 8 * chunk < from.columns;
        const char* at = from.base + (inside ? (row + r) * from.step + 16 * chunk : 0);
        copy16(place_of<R>(tile, r, chunk), at, inside ? 16 : 0);
    }
}

template <int R, bool IN_REGISTERS> struct Rows {
    u32 tile;
    u32 held[IN_REGISTERS ? WIDE / 16 : 1][MT][4];
    DEV_METHOD void part(u32 (&a)[4], int k, int m) const {
        const int row = warp() * 16 * MT + m * 16 + (lane() & 15);
        fragments(a, place_of<R>(tile, row, 2 * k + (lane() >> 4)));
    }
    DEV_METHOD Rows(u32 from) : tile(from) {
        if (IN_REGISTERS)
            #pragma unroll
            for (int k = 0; k < WIDE / 16; ++k)
                #pragma unroll
                for (int m = 0; m < MT; ++m) part(held[IN_REGISTERS ? k : 0][m], k, m);
    }
};

template <int R, bool IN_REGISTERS>
DEV void scores(float (&s)[MT][NT][4], const Rows<R, IN_REGISTERS>& rows, u32 tile) {
    #pragma unroll
    for (int i = 0; i < MT * NT * 4; ++i) s[i / (4 * NT)][i / 4 % NT][i % 4] = 0.0f;
    #pragma unroll
    for (int k = 0; k < WIDE / 16; ++k) {
        u32 a[MT][4];
        #pragma unroll
        for (int m = 0; m < MT; ++m)
            if (IN_REGISTERS)
                #pragma unroll
                for (int i = 0; i < 4; ++i) a[m][i] = rows.held[IN_REGISTERS ? k : 0][m][i];
            else rows.part(a[m], k, m);
        #pragma unroll
        for (int n = 0; n < NT; n += 2) {
            u32 b[4];
            const int row = 8 * n + (lane() & 7) + ((lane() >> 4) << 3);
            fragments(b, place_of<COLS>(tile, row, 2 * k + ((lane() >> 3) & 1)));
            #pragma unroll
            for (int m = 0; m < MT; ++m) {
                mma(s[m][n], a[m], b[0], b[1]);
                mma(s[m][n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

DEV void mix(float (&o)[MT][DT][4], const Weights& w, u32 tile, u32) {
    #pragma unroll
    for (int k = 0; k < COLS / 16; ++k) {
        #pragma unroll
        for (int d = 0; d < DT; d += 2) {
            u32 b[4];
            fragments_trans(b, place_of<COLS>(tile, 16 * k + (lane() & 15), d + (lane() >> 4)));
            #pragma unroll
            for (int m = 0; m < MT; ++m) {
                mma(o[m][d], w.parts[m][k], b[0], b[1]);
                mma(o[m][d + 1], w.parts[m][k], b[2], b[3]);
            }
        }
    }
}
#define SCRATCH_BYTES 0
"""
)

PLAIN = (
    _COPIES
    + r"""
template <int R> DEV void load(u32 tile, const Source& from, int row, u32) {
    for (int i = threadIdx.x; i < R * (WIDE / 4); i += THREADS) {
        const int r = i / (WIDE / 4), chunk = i % (WIDE / 4);
        const bool inside = row + r < from.rows && 4 * chunk < from.columns;
        const char* at = from.base + (inside ? (row + r) * from.step + 16 * chunk : 0);
        copy16(tile + r * ROW_BYTES + 16 * chunk, at, inside ? 16 : 0);
    }
}

template <int R, bool IN_REGISTERS> struct Rows {
    u32 own;  // the thread's first row
    DEV_METHOD Rows(u32 tile) : own(tile + first_row(0) * ROW_BYTES) {}
};

DEV float dot(float4 x, float4 y, float sum) {
    return fmaf(x.w, y.w, fmaf(x.z, y.z, fmaf(x.y, y.y, fmaf(x.x, y.x, sum))));
}

template <int R, bool IN_REGISTERS>
DEV void scores(float (&s)[MT][NT][4], const Rows<R, IN_REGISTERS>& rows, u32 tile) {
    #pragma unroll
    for (int i = 0; i < NT * 4; ++i) s[0][i / 4][i % 4] = 0.0f;
    const u32 columns = tile + 2 * (lane() & 3) * ROW_BYTES;
    #pragma unroll 2
    for (int k = 0; k < WIDE * 4; k += 16) {
        const float4 x = take128(rows.own + k), y = take128(rows.own + 8 * ROW_BYTES + k);
        #pragma unroll
        for (int n = 0; n < NT; ++n)
            #pragma unroll
            for (int e = 0; e < 2; ++e) {
                const float4 z = take128(columns + (8 * n + e) * ROW_BYTES + k);
                s[0][n][e] = dot(x, z, s[0][n][e]);
                s[0][n][2 + e] = dot(y, z, s[0][n][2 + e]);
            }
    }
}

#define SCRATCH_ROW (4 * COLS + 16)
#define SCRATCH_BYTES ((THREADS / 32) * 16 * SCRATCH_ROW)
struct Weights {
    float parts[MT][NT][4];
    DEV_METHOD void take(const float (&s)[MT][NT][4]) {
        #pragma unroll
        for (int i = 0; i < NT * 4; ++i) parts[0][i / 4][i % 4] = s[0][i / 4][i % 4];
    }
    DEV_METHOD float at(int m, int n, int i) const { return parts[m][n][i]; }
};
// A warp's weights go through shared memory, because every lane needs whole rows of them.
DEV void mix(float (&o)[MT][DT][4], const Weights& w, u32 tile, u32 scratch) {
    const u32 own = scratch + (warp() * 16 + (lane() >> 2)) * SCRATCH_ROW;
    __syncwarp();
    #pragma unroll
    for (int n = 0; n < NT; ++n)
        #pragma unroll
        for (int r = 0; r < 2; ++r)
            put64(own + 8 * r * SCRATCH_ROW + 4 * (8 * n + 2 * (lane() & 3)),
                w.parts[0][n][2 * r], w.parts[0][n][2 * r + 1]);
    __syncwarp();
    const u32 columns = tile + 8 * (lane() & 3);
    #pragma unroll 1
    for (int k = 0; k < COLS; k += 4) {
        const float4 x = take128(own + 4 * k), y = take128(own + 8 * SCRATCH_ROW + 4 * k);
        const float xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
        #pragma unroll
        for (int e = 0; e < 4; ++e)
            #pragma unroll
            for (int d = 0; d < DT; ++d) {
                const float2 z = take64(columns + (k + e) * ROW_BYTES + 32 * d);
                o[0][d][0] = fmaf(xs[e], z.x, o[0][d][0]);
                o[0][d][1] = fmaf(xs[e], z.y, o[0][d][1]);
                o[0][d][2] = fmaf(ys[e], z.x, o[0][d][2]);
                o[0][d][3] = fmaf(ys[e], z.y, o[0][d][3]);
            }
    }
}

template <int R> DEV void store(
    u32, const float (&sums)[MT][DT][4], const float (&factor)[MT][2],
    void* to, i64 step, int row, int rows, int columns
) {
    #pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int own = row + first_row(0) + 8 * r;
        if (own >= rows) continue;
        #pragma unroll
        for (int d = 0; d < DT; ++d)
            #pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int column = 8 * d + 2 * (lane() & 3) + e;
                if (column < columns)
                    ((float*)to)[own * step + column] = sums[0][d][2 * r + e] * factor[0][r];
            }
    }
}
"""
)

HOPPER = (
    _HALVES
    + r"""
struct Source { const TensorMap* map; int batch, head; };
#define MAP_OF(name) name
DEV Source source_of(
    const TensorMap* map, const void*, const i64 (&)[3], int batch, int head, int, int
) {
    return {map, batch, head};
}

// Barriers: one for the tiles that are loaded once, and for each stage one that it is full (TMA's
// bytes have arrived) and one that it is empty (every warp has read it).
#define PIPE_BYTES (8 + 16 * STAGES)
#define ONCE(pipe) (pipe)
#define FULL(pipe, it) ((pipe) + 8 + 8 * ((it) % STAGES))
#define EMPTY(pipe, it) ((pipe) + 8 + 8 * STAGES + 8 * ((it) % STAGES))
DEV void pipe_begin(u32 pipe) {
    if (threadIdx.x == 0) {
        barrier_make(ONCE(pipe), 1);
        for (int s = 0; s < STAGES; ++s) {
            barrier_make(FULL(pipe, s), 1);
            barrier_make(EMPTY(pipe, s), THREADS / 32);
        }
        barriers_made();
    }
    __syncthreads();
}
DEV bool fill_begin(u32 pipe, int it, u32 bytes) {
    if (threadIdx.x) return false;
    if (it >= STAGES) barrier_wait(EMPTY(pipe, it), (it / STAGES - 1) & 1);
    barrier_expect(FULL(pipe, it), bytes);
    return true;
}
DEV void fill_end() { __syncwarp(); }
DEV bool once_begin(u32 pipe, u32 bytes) {
    if (threadIdx.x) return false;
    barrier_expect(ONCE(pipe), bytes);
    return true;
}
DEV void once_end() { __syncwarp(); }
DEV void wait_once(u32 pipe) { barrier_wait(ONCE(pipe), 0); }
DEV void wait_full(u32 pipe, int it) { barrier_wait(FULL(pipe, it), (it / STAGES) & 1); }
DEV void release(u32 pipe, int it) {
    __syncwarp();
    if (lane() == 0) barrier_arrive(EMPTY(pipe, it));
}
template <int R> DEV void load(u32 tile, const Source& from, int row, u32 barrier) {
    #pragma unroll
    for (int block = 0; block < WIDE / 64; ++block)
        copy_box(tile + block * R * 128, from.map, 64 * block, row, from.head, from.batch, barrier);
}
DEV void load_line(u32 to, const float* from, u32 barrier) {
    copy_line(to, from, 4 * COLS, barrier);
}

template <int PENDING, int N> DEV void sums_wait(float (&x)[MT][N][4]) {
    products_wait<PENDING>();
    #pragma unroll
    for (int i = 0; i < N * 4; ++i) settle(x[0][i / 4][i % 4]);
}

// wgmma's matrix descriptor: address and strides in units of 16 bytes, 128-byte swizzle. 8-row
// groups are 1024 bytes apart; `across` is from one block of 64 columns to the next.
DEV u64 described(u32 at, u32 across) {
    const u64 steps = (u64)(across >> 4) << 16 | (u64)(1024 >> 4) << 32;
    return (u64)((at & 0x3ffff) >> 4) | steps | 1ull << 62;
}

// Never held in registers: CUDA 13.0's assembler reuses those of a loop's left operands.
template <int R, bool IN_REGISTERS> struct Rows {
    u32 tile;  // the unit's first row
    DEV_METHOD Rows(u32 from) : tile(from + unit() * UNIT * 128) {}
};

template <int R, bool IN_REGISTERS>
DEV void scores(float (&s)[MT][NT][4], const Rows<R, IN_REGISTERS>& rows, u32 tile) {
    products_begin();
    #pragma unroll
    for (int k = 0; k < WIDE / 16; ++k) {
        const u32 step = (k % 4) * 32;  // within the 128 bytes of a row
        const u64 b = described(tile + (k / 4) * (COLS * 128) + step, 16);
        times_rows(s[0], described(rows.tile + (k / 4) * (R * 128) + step, 16), b, k > 0);
    }
    products_end();
}

DEV void mix(float (&o)[MT][DT][4], const Weights& w, u32 tile, u32) {
    products_begin();
    #pragma unroll
    for (int k = 0; k < COLS / 16; ++k)
        mix_rows(o[0], w.parts[0][k], described(tile + k * 2048, COLS * 128), 1);
    products_end();
}
#define SCRATCH_BYTES 0
"""
)
