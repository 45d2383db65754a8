"""NVIDIA GPUs: kernels written as CUDA C++, compiled by NVRTC, launched through the driver."""
