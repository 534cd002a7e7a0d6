"""The same commands as if on another machine: other hashes, and a processor without anything that is not everywhere.

Which instructions NumPy and the C library use depends on the processor, and those that round once where others round
twice give other last bits. Without all of them, both do as they would on the oldest machine that they know.
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
