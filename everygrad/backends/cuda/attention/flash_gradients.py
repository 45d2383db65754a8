"""The kernels of attention's derivatives, in the functions of an engine, as CUDA C++ text.

    DELTA     delta = sum(g * out) of every query
    QUERIES   a block holds rows of queries and loops over tiles of keys: dq
    KEYS      a block holds rows of keys and loops over tiles of queries: dk and dv

Nothing of the size queries x keys is ever stored. dq, dk and dv are accumulated in one order, in
registers of one block: no atomics, so results are deterministic. The cost is that weights and their
derivatives are computed twice: seven products where one kernel with atomics has five.
"""

from __future__ import annotations

DELTA = r"""
#define LANES (WIDE * (int)sizeof(elem) / 16)
#define EACH (16 / (int)sizeof(elem))
extern "C" __global__ void __launch_bounds__(THREADS)
flash_kernel(const __grid_constant__ Params p) {
    const int column = threadIdx.x % LANES * EACH;
    const Place at(p, blockIdx.x);
    // whole blocks continue or end: their rows divide `padded`
    for (int query = blockIdx.y * (THREADS / LANES) + threadIdx.x / LANES; query < p.padded;
         query += gridDim.y * (THREADS / LANES)) {
        float sum = 0.0f;
        if (query < p.queries && column < p.depth) {
            const elem* g = (const elem*)p.g + at.batch * p.g_steps[0] + at.head * p.g_steps[1]
                + query * p.g_steps[2] + column;
            const elem* out = (const elem*)p.out + at.batch * p.out_steps[0]
                + at.head * p.out_steps[1] + query * p.out_steps[2] + column;
            const float4 x = *(const float4*)g, y = *(const float4*)out;
            #pragma unroll
            for (int i = 0; i < EACH; ++i)
                sum = fmaf(wide(((const elem*)&x)[i]), wide(((const elem*)&y)[i]), sum);
        }
        #pragma unroll
        for (int lanes = 1; lanes < LANES; lanes *= 2) sum += across(sum, lanes);
        if (column == 0) p.delta[(i64)blockIdx.x * p.padded + query] = sum;
    }
}
"""

QUERIES = r"""
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
flash_kernel(const __grid_constant__ Params p) {
    SHARED_BASE(base)
    const u32 q_tile = base, g_tile = base + TILE(ROWS), stages = base + 2 * TILE(ROWS);
    const u32 stage = 2 * TILE(COLS), scratch = stages + STAGES * stage;
    const u32 pipe = scratch + SCRATCH_BYTES;
    const Place at(p, blockIdx.x);
    const int first = (CAUSAL ? gridDim.y - 1 - blockIdx.y : blockIdx.y) * ROWS;
    const int own = first + unit() * UNIT;
    int count = tiles(p.keys, COLS);
    if (CAUSAL) count = least(count, tiles(least(first + ROWS, p.queries), COLS));

    const Source q = source_of(
        MAP_OF(&p.maps[0]), p.q, p.q_steps, at.batch, at.head, p.queries, p.width);
    const Source k = source_of(
        MAP_OF(&p.maps[1]), p.k, p.k_steps, at.batch, at.source, p.keys, p.width);
    const Source v = source_of(
        MAP_OF(&p.maps[2]), p.v, p.v_steps, at.batch, at.source, p.keys, p.depth);
    const Source g = source_of(
        MAP_OF(&p.maps[3]), p.g, p.g_steps, at.batch, at.head, p.queries, p.depth);
    auto fill = [&](int it) {
        const u32 to = stages + it % STAGES * stage;
        if (it < count && fill_begin(pipe, it, stage)) {
            load<COLS>(to, k, it * COLS, FULL(pipe, it));
            load<COLS>(to + TILE(COLS), v, it * COLS, FULL(pipe, it));
        }
        fill_end();
    };
    pipe_begin(pipe);
    if (once_begin(pipe, 2 * TILE(ROWS))) {
        load<ROWS>(q_tile, q, first, ONCE(pipe));
        load<ROWS>(g_tile, g, first, ONCE(pipe));
    }
    once_end();
    for (int it = 0; it < STAGES - 1; ++it) fill(it);

    float dq[MT][DT][4] = {}, lse[MT][2], above[MT][2] = {}, delta[MT][2];
    const i64 line = (i64)(at.batch * p.heads + at.head) * p.padded;
    #pragma unroll
    for (int i = 0; i < 2 * MT; ++i) {
        const int query = first + first_row(i / 2) + 8 * (i & 1);
        const bool inside = query < p.queries;
        lse[i / 2][i & 1] = inside ? p.lse[line * LSE_LINES + query] : infinity();
#if MASK
        if (inside) above[i / 2][i & 1] = p.lse[line * LSE_LINES + p.padded + query];
#endif
        delta[i / 2][i & 1] = inside ? p.delta[line + query] : 0.0f;
    }
    const float steep = STEEP(p);
    wait_once(pipe);
    const Rows<ROWS, REGISTER_ROWS> q_rows(q_tile), g_rows(g_tile);
    for (int it = 0; it < count; ++it) {
        wait_full(pipe, it);
        fill(it + STAGES - 1);
        const u32 k_tile = stages + it % STAGES * stage;
        const int key = it * COLS;
        if (!CAUSAL || key < own + UNIT) {
            float s[MT][NT][4], ds[MT][NT][4];
            scores(s, q_rows, k_tile);
            scores(ds, g_rows, k_tile + TILE(COLS));
            sums_wait<1>(s);
            finish(p, at, s, first, own, key);
            #pragma unroll
            for (int i = 0; i < MT * NT * 4; ++i) {
                float& x = s[i / (4 * NT)][i / 4 % NT][i % 4];
                const float less = fmaf(x, steep, -lse[i / (4 * NT)][i / 2 % 2]);
                x = exp2_of(MASK ? less - above[i / (4 * NT)][i / 2 % 2] : less);
            }
            sums_wait<0>(ds);
            #pragma unroll
            for (int i = 0; i < MT * NT * 4; ++i) {
                float& x = ds[i / (4 * NT)][i / 4 % NT][i % 4];
                x = s[i / (4 * NT)][i / 4 % NT][i % 4] * (x - delta[i / (4 * NT)][i / 2 % 2]);
            }
            Weights weights;
            weights.take(ds);
            mix(dq, weights, k_tile, scratch);
            sums_wait<0>(dq);
        }
        release(pipe, it);
    }
    float factor[MT][2];
    #pragma unroll
    for (int m = 0; m < MT; ++m) factor[m][0] = factor[m][1] = p.scale;
    elem* out = (elem*)p.dq + at.batch * p.dq_steps[0] + at.head * p.dq_steps[1];
    store<ROWS>(q_tile, dq, factor, out, p.dq_steps[2], first, p.queries, p.width);
}
"""

KEYS = r"""
#define LINE (4 * COLS)  // bytes of statistics: lse (one or two of them), then delta
#define LINES ((LSE_LINES + 1) * LINE)
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
flash_kernel(const __grid_constant__ Params p) {
    SHARED_BASE(base)
    const u32 k_tile = base, v_tile = base + TILE(ROWS), stages = base + 2 * TILE(ROWS);
    const u32 stage = 2 * TILE(COLS), lines = stages + STAGES * stage;
    const u32 scratch = lines + STAGES * LINES, pipe = scratch + SCRATCH_BYTES;
    // one block serves all heads that share these keys
    const int sources = p.heads / p.group;
    Place at(p, 0);
    at.batch = blockIdx.x / sources, at.source = blockIdx.x % sources;
    const int first = blockIdx.y * ROWS, own = first + unit() * UNIT;
    const int start = CAUSAL ? first / COLS : 0, all = tiles(p.queries, COLS);
    const int span = start < all ? all - start : 0, count = span * p.group;

    const Source k = source_of(
        MAP_OF(&p.maps[1]), p.k, p.k_steps, at.batch, at.source, p.keys, p.width);
    const Source v = source_of(
        MAP_OF(&p.maps[2]), p.v, p.v_steps, at.batch, at.source, p.keys, p.depth);
    auto fill = [&](int it) {
        if (it < count && fill_begin(pipe, it, stage + LINES)) {
            const u32 to = stages + it % STAGES * stage, line = lines + it % STAGES * LINES;
            const int head = at.source * p.group + it / span, query = (start + it % span) * COLS;
            const Source q = source_of(
                MAP_OF(&p.maps[0]), p.q, p.q_steps, at.batch, head, p.queries, p.width);
            const Source g = source_of(
                MAP_OF(&p.maps[3]), p.g, p.g_steps, at.batch, head, p.queries, p.depth);
            const i64 pair = (i64)(at.batch * p.heads + head) * p.padded;
            const float* lse = p.lse + pair * LSE_LINES + query;
            load<COLS>(to, q, query, FULL(pipe, it));
            load<COLS>(to + TILE(COLS), g, query, FULL(pipe, it));
            load_line(line, lse, FULL(pipe, it));
            if (MASK) load_line(line + LINE, lse + p.padded, FULL(pipe, it));
            load_line(line + LSE_LINES * LINE, p.delta + pair + query, FULL(pipe, it));
        }
        fill_end();
    };
    pipe_begin(pipe);
    if (once_begin(pipe, 2 * TILE(ROWS))) {
        load<ROWS>(k_tile, k, first, ONCE(pipe));
        load<ROWS>(v_tile, v, first, ONCE(pipe));
    }
    once_end();
    for (int it = 0; it < STAGES - 1; ++it) fill(it);

    float dk[MT][DT][4] = {}, dv[MT][DT][4] = {};
    const float steep = STEEP(p);
    wait_once(pipe);
    const Rows<ROWS, REGISTER_ROWS> k_rows(k_tile), v_rows(v_tile);
    for (int it = 0; it < count; ++it) {
        wait_full(pipe, it);
        fill(it + STAGES - 1);
        const u32 q_tile = stages + it % STAGES * stage, g_tile = q_tile + TILE(COLS);
        const u32 line = lines + it % STAGES * LINES + 8 * (lane() & 3);
        const int query = (start + it % span) * COLS;
        at.head = at.source * p.group + it / span;
        if (!CAUSAL || own < query + COLS) {
            float s[MT][NT][4], ds[MT][NT][4];
            scores(s, k_rows, q_tile);
            scores(ds, v_rows, g_tile);
            sums_wait<1>(s);
            const bool edge = own + UNIT > p.keys || (CAUSAL && own + UNIT > query);
            if (SCALED || edge)
                #pragma unroll
                for (int i = 0; i < MT * NT * 4; ++i) {
                    float& x = s[i / (4 * NT)][i / 4 % NT][i % 4];
                    const int key = first + first_row(i / (4 * NT)) + 4 * (i & 2);
                    x = finished(
                        p, at, x, query + 8 * (i / 4 % NT) + 2 * (lane() & 3) + (i & 1), key, edge);
                }
            #pragma unroll
            for (int n = 0; n < NT; ++n) {
                const float2 lse = take64(line + 32 * n);
#if MASK
                const float2 above = take64(line + LINE + 32 * n);
#else
                const float2 above = {0.0f, 0.0f};
#endif
                #pragma unroll
                for (int i = 0; i < 4 * MT; ++i) {
                    const float less = fmaf(
                        s[i / 4][n][i % 4], steep, -(i & 1 ? lse.y : lse.x));
                    s[i / 4][n][i % 4] = exp2_of(
                        MASK ? less - (i & 1 ? above.y : above.x) : less);
                }
            }
            Weights weights, slopes;
            weights.take(s);
            mix(dv, weights, g_tile, scratch);
            sums_wait<1>(ds);
            #pragma unroll
            for (int n = 0; n < NT; ++n) {
                const float2 delta = take64(line + LSE_LINES * LINE + 32 * n);
                #pragma unroll
                for (int i = 0; i < 4 * MT; ++i)
                    ds[i / 4][n][i % 4] = weights.at(i / 4, n, i % 4)
                        * (ds[i / 4][n][i % 4] - (i & 1 ? delta.y : delta.x));
            }
            slopes.take(ds);
            mix(dk, slopes, q_tile, scratch);
            sums_wait<0>(dk);
            sums_wait<0>(dv);
        }
        release(pipe, it);
    }
    float factor[MT][2];
    #pragma unroll
    for (int m = 0; m < MT; ++m) factor[m][0] = factor[m][1] = p.scale;
    elem* to_k = (elem*)p.dk + at.batch * p.dk_steps[0] + at.source * p.dk_steps[1];
    store<ROWS>(k_tile, dk, factor, to_k, p.dk_steps[2], first, p.keys, p.width);
    #pragma unroll
    for (int m = 0; m < MT; ++m) factor[m][0] = factor[m][1] = 1.0f;
    elem* to_v = (elem*)p.dv + at.batch * p.dv_steps[0] + at.source * p.dv_steps[1];
    store<ROWS>(v_tile, dv, factor, to_v, p.dv_steps[2], first, p.keys, p.depth);
}
"""
