"""Single figures beside the workloads: import time, an empty call, long chains, device rates."""
