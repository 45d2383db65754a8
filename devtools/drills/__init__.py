"""Long exercises that are too slow for the tests: run by hand, each prints what it found."""
