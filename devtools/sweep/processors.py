"""Other processors than this one: generators ask LLVM what this one has, and are told less."""

from __future__ import annotations

import platform

# name for LLVM, and the features that it has not (nor anything whose name begins so)
WITHOUT = {
    "haswell": ("avx512", "avx10", "amx", "vaes", "vpclmulqdq", "gfni", "avxvnni"),
    "nehalem": ("avx", "amx", "vaes", "vpclmulqdq", "gfni", "fma", "f16c", "bmi", "lzcnt", "movbe",
                "xsave", "fsgsbase", "rdrnd", "rdseed", "adx", "sha"),
}  # fmt: skip


def here() -> list[str]:
    """The processors that can be played on this one; "this" is the one itself."""
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    return ["this", "this", *WITHOUT] if is_x86 else ["this"]


def play(name: str) -> None:
    """From now on LLVM says that this is processor `name`. Before the first kernel is compiled."""
    if name == "this":
        return
    from llvmlite import binding as llvm  # machines that sweep a GPU may have none

    found, missing = llvm.get_host_cpu_features(), WITHOUT[name]
    for feature in found:
        if feature.startswith(missing):
            found[feature] = False
    llvm.get_host_cpu_features = lambda: found
    llvm.get_host_cpu_name = lambda: name
