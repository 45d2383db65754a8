"""Compiled functions on the CPU: a graph lowered to steps, memory planned, replayed."""
