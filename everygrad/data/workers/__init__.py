"""Workers of a DataLoader: processes, threads, and what crosses between them and the loader."""
