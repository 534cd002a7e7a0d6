"""Environments that make a command run as on another machine: other hashes, and a processor without SIMD extensions.

The instructions that NumPy and the C library use depend on the processor, and fused instructions, which round once
instead of twice, change the last bits. With all of them disabled, both use the instructions of the oldest supported
processor.
"""

from __future__ import annotations

import os

from numpy._core._multiarray_umath import __cpu_dispatch__ as OPTIONAL_FEATURES  # noqa: N812

LOCAL_ENVIRONMENT = {**os.environ, "PYTHONHASHSEED": "1"}

OTHER_CPU_ENVIRONMENT = {
    **os.environ,
    "PYTHONHASHSEED": "4321",
    "NPY_DISABLE_CPU_FEATURES": " ".join(OPTIONAL_FEATURES),
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX512F,-AVX2,-AVX,-FMA,-FMA4,-ERMS",
}
