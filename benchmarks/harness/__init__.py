"""What times a workload: each peer in a process of its own, rounds in turn, results compared."""
