"""The kernel language: loops, loads, stores and barriers between a group of ops and the text of
LLVM IR, CUDA C++ or WGSL. It knows scalar expressions (`compiler.expr`) and no device.

`kernel` is the language and its builder, `show` prints it, `verify` checks it, `passes` make it
smaller, `machine` holds the numbers that devices supply; then the lowerings of each family of
kernels: `scan`; `gather`, `scatter`, `scatter_sorted`, `pooling`, `arg_reduce` and `copy_parts`,
which share `copy`; and, in `groups`, fused groups and eager ops. Each device has a renderer
(`kernel_render`; `render` is what those of C++ and WGSL share), `report` says what of a kernel is
shown when a driver rejects it, and `backends.reference.interpreter` runs kernels in NumPy.
"""
