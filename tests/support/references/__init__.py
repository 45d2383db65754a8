"""What the ops are held against: NumPy, SciPy and PyTorch, never our own code. Op records name
these as "tests.support.references.MODULE:NAME"; `basic` has what belongs to no other family."""
