"""CUDA C++ as text: types, the prelude, scalar programs, a kernel's arguments."""
