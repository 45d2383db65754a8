"""The fuzzer's parts: programs as data, their generator, the ways to run them, the shrinker."""
