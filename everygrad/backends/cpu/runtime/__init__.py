"""Threads, memory and native calls: what runs on the CPU, whatever it computes.

May know: `backends` and `llvm` (the threads are generated code). No graph, no kernel of an op.
"""
