"""The kernel language: loops, loads, stores and barriers between a group of ops and the text of
LLVM IR, CUDA C++ or WGSL. It knows scalar expressions (`compiler.expr`) and no device.

`kernel` is the language and its builder, `show` prints it, `verify` checks it, `passes` make it
smaller, `machine` holds the numbers that devices supply; then the lowerings of each family of
kernels: `scan`; `gather`, `scatter`, `scatter_sorted` and `copy_parts`, which share `copy`; and
fused groups. Of these `group_plan` says which kernels there are, `group_threads` how threads share
the work; `group` writes passes and stores, `group_values` loads and bodies of ops, `group_sums` how
sums accumulate and the kernel that combines partial sums; `group_sizes` names the sizes that a text
may leave open. Each device has a renderer (`kernel_render`; `render` is what
those of C++ and WGSL share), `report` says what of a kernel is shown when a driver rejects it, and
`backends.reference.interpreter` runs kernels in NumPy.
"""
