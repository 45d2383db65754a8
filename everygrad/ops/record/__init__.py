"""What an op is: the record and the registry, the five families, what arguments an op takes."""
