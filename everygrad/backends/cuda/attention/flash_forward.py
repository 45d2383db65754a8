"""The forward kernel of attention, in the functions of an engine (`flash_engines`), as CUDA C++.

A block holds rows of queries and loops over tiles of keys. It stores out and lse, or with
STATISTICS lse and delta instead of out, for a backward that has neither.
"""

from __future__ import annotations

FORWARD = r"""
// The next tile's scores become weights; `factor` rescales earlier sums to the new maximum.
DEV void softmax_step(
    float (&s)[MT][NT][4], float (&top)[MT][2], float (&sum)[MT][2], float (&factor)[MT][2],
    float steep
) {
    #pragma unroll
    for (int m = 0; m < MT; ++m)
        #pragma unroll
        for (int r = 0; r < 2; ++r) {
            float high = top[m][r];
            #pragma unroll
            for (int n = 0; n < NT; ++n)
                high = fmaxf(high, fmaxf(s[m][n][2 * r], s[m][n][2 * r + 1]));
            high = quad_max(high);
            // a row without any score yet: -inf - -inf would be NaN
            const float zero = high == -infinity() ? 0.0f : high * steep;
            factor[m][r] = exp2_of(fmaf(top[m][r], steep, -zero));
            float total = 0.0f;
            #pragma unroll
            for (int n = 0; n < NT; ++n)
                #pragma unroll
                for (int e = 0; e < 2; ++e) {
                    s[m][n][2 * r + e] = exp2_of(fmaf(s[m][n][2 * r + e], steep, -zero));
                    total += s[m][n][2 * r + e];
                }
            top[m][r] = high;
            sum[m][r] = fmaf(sum[m][r], factor[m][r], total);
        }
}
DEV void rescale(float (&o)[MT][DT][4], const float (&factor)[MT][2]) {
    bool moved = false;  // maxima seldom change after the first tiles
    #pragma unroll
    for (int i = 0; i < 2 * MT; ++i) moved |= factor[i / 2][i & 1] != 1.0f;
    if (!anywhere(moved)) return;
    #pragma unroll
    for (int i = 0; i < MT * DT * 4; ++i)
        o[i / (4 * DT)][i / 4 % DT][i % 4] *= factor[i / (4 * DT)][i / 2 % 2];
}
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
flash_kernel(const __grid_constant__ Params p) {
    SHARED_BASE(base)
    const u32 q_tile = base, stages = base + TILE(ROWS), stage = 2 * TILE(COLS);
    const u32 scratch = stages + STAGES * stage, pipe = scratch + SCRATCH_BYTES;
    const Place at(p, blockIdx.x);
    // with the causal mask the last rows have most work: they start first
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
    auto fill = [&](int it) {
        const u32 to = stages + it % STAGES * stage;
        if (it < count && fill_begin(pipe, it, stage)) {
            load<COLS>(to, k, it * COLS, FULL(pipe, it));
            load<COLS>(to + TILE(COLS), v, it * COLS, FULL(pipe, it));
        }
        fill_end();
    };
    pipe_begin(pipe);
    if (once_begin(pipe, TILE(ROWS))) load<ROWS>(q_tile, q, first, ONCE(pipe));
    once_end();
    for (int it = 0; it < STAGES - 1; ++it) fill(it);

    float o[MT][DT][4] = {}, top[MT][2], sum[MT][2] = {};
    #pragma unroll
    for (int m = 0; m < MT; ++m) top[m][0] = top[m][1] = -infinity();
    wait_once(pipe);
    const Rows<ROWS, REGISTER_ROWS> rows(q_tile);
    float factor[MT][2];
    // tiles that any row of this warp's unit attends to
    const int mine = CAUSAL ? least(count, tiles(own + UNIT, COLS)) : count;
#if OVERLAP
    // The softmax of one tile overlaps with the product of the previous tile's weights and values.
    float s[MT][NT][4];
    Weights weights;
    for (int it = 0; it < count; ++it) {
        if (it) fill(it + STAGES - 2);
        wait_full(pipe, it);
        const u32 k_tile = stages + it % STAGES * stage;
        const u32 v_before = stages + (it + STAGES - 1) % STAGES * stage + TILE(COLS);
        if (it < mine) {
            scores(s, rows, k_tile);
            if (it) mix(o, weights, v_before, scratch);
            if (it) sums_wait<1>(s);
            else sums_wait<0>(s);
            finish(p, at, s, first, own, it * COLS);
            softmax_step(s, top, sum, factor, STEEP(p));
            sums_wait<0>(o);
            rescale(o, factor);
            weights.take(s);
        } else if (it == mine) {
            mix(o, weights, v_before, scratch);
            sums_wait<0>(o);
        }
        if (it) release(pipe, it - 1);
    }
    if (mine == count) {
        mix(o, weights, stages + (count - 1) % STAGES * stage + TILE(COLS), scratch);
        sums_wait<0>(o);
    }
#else
    for (int it = 0; it < count; ++it) {
        wait_full(pipe, it);
        fill(it + STAGES - 1);
        const u32 k_tile = stages + it % STAGES * stage;
        if (it < mine) {
            float s[MT][NT][4];
            scores(s, rows, k_tile);
            sums_wait<0>(s);
            finish(p, at, s, first, own, it * COLS);
            softmax_step(s, top, sum, factor, STEEP(p));
            rescale(o, factor);
            Weights weights;
            weights.take(s);
            mix(o, weights, k_tile + TILE(COLS), scratch);
            sums_wait<0>(o);
        }
        release(pipe, it);
    }
#endif

    const i64 line = (i64)(at.batch * p.heads + at.head) * p.padded;
    float* lse = p.lse + line * LSE_LINES;
    #pragma unroll
    for (int m = 0; m < MT; ++m)
        #pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int query = first + first_row(m) + 8 * r;
            const float total = quad_sum(sum[m][r]);
            factor[m][r] = total == 0.0f ? 0.0f : 1.0f / total;
            const bool dead = total == 0.0f || query >= p.queries;
            const float above = dead ? 0.0f : log2_of(total);
            const bool told = (lane() & 3) == 0 && query < p.padded;
#if MASK
            if (told) lse[query] = dead ? infinity() : top[m][r];
            if (told) lse[p.padded + query] = above;
#else
            if (told) lse[query] = dead ? infinity() : fmaf(top[m][r], STEEP(p), above);
#endif
        }
#if STATISTICS
    const elem* g = (const elem*)p.g + at.batch * p.g_steps[0] + at.head * p.g_steps[1];
    #pragma unroll
    for (int m = 0; m < MT; ++m)
        #pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int query = first + first_row(m) + 8 * r;
            float delta = 0.0f;
            for (int i = 0; i < 2 * DT; ++i) {
                const int column = 8 * (i / 2) + 2 * (lane() & 3) + (i & 1);
                if (query < p.queries && column < p.depth)
                    delta += o[m][i / 2][2 * r + (i & 1)] * wide(g[query * p.g_steps[2] + column]);
            }
            delta = quad_sum(delta) * factor[m][r];
            if ((lane() & 3) == 0 && query < p.padded) p.delta[line + query] = delta;
        }
#else
    elem* out = (elem*)p.out + at.batch * p.out_steps[0] + at.head * p.out_steps[1];
    store<ROWS>(q_tile, o, factor, out, p.out_steps[2], first, p.queries, p.depth);
#endif
}
"""
