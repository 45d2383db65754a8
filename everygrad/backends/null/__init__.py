"""A device that computes nothing: shapes and dtypes only, for tests of everything above a backend."""
