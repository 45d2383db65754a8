"""Matrix products by cuBLASLt, and their epilogues."""
