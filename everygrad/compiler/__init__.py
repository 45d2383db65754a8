"""From what a kernel does to one element, to programs a backend can run."""
