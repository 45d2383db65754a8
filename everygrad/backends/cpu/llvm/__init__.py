"""LLVM IR as text, compiled to machine code: intrinsics, elementary functions, loops.

May know: `compile.expr`. No op and no graph.
"""
