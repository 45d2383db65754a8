"""WGSL as text: words and dtypes, scalar programs, functions that WGSL lacks."""
