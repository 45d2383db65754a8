"""The ops: one record each, in its family's file."""
