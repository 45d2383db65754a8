"""Random numbers: Philox, generators, distributions."""
