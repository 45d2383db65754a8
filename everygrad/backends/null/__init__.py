"""A device that computes nothing: shapes and dtypes only, for tests of what stands above."""
