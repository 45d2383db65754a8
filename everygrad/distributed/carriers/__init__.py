"""What carries bytes between ranks: threads of one process, MPI, NCCL."""
