"""The WebGPU backend: any GPU through Vulkan, Metal or DX12, with kernels written in WGSL."""
