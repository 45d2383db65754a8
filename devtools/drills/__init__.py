"""Drills: what processes, threads and signals do to a program, on purpose and for long."""
