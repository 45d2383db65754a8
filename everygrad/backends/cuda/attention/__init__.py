"""Flash attention: kernels for Hopper, Ampere and float32."""
