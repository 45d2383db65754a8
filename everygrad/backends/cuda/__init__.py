"""NVIDIA GPUs: kernels written as CUDA C++, compiled by NVRTC, launched through the driver."""

from everygrad.core.config import get_matmul_precision, set_matmul_precision


class _Matmul:
    """`torch.backends.cuda.matmul`: what `set_matmul_precision` says."""

    @property
    def allow_tf32(self) -> bool:
        return get_matmul_precision() != "highest"

    @allow_tf32.setter
    def allow_tf32(self, allowed: bool) -> None:
        set_matmul_precision("high" if allowed else "highest")


matmul = _Matmul()
