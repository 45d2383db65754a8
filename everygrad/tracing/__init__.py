"""Compiled functions: tracing, the cache, replay."""
