"""How the kernel is compiled: parts are inlined, the whole is cached on disk under a digest of its sources.

Numba's own cache looks at one source file's time stamp. The kernel is several files and takes constants from a further
one, and wheels carry equal time stamps for every version, so a stale kernel could run unnoticed. Here the cache
folder is named by a digest of all the sources. It lies under `NUMBA_CACHE_DIR`, else the user's cache folder, else
the temporary folder; where nothing can be written each process compiles the kernel anew (17 CPU-seconds; the full one
27).
"""

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba import config, njit

__all__ = ["cached_kernel", "inlined"]

SOURCES = (
    "block_pool.py",
    "compiled.py",
    "full_blocks.py",
    "full_kernel.py",
    "full_scheduler.py",
    "full_tables.py",
    "gaps.py",
    "heap.py",
    "kernel.py",
    "named_blocks.py",
    "prefix_blocks.py",
    "running_list.py",
    "tables.py",
)

OPTIONS: dict[str, Any] = {"_nrt": False, "error_model": "numpy"}
"""No reference counts: a kernel allocates nothing, and its caller holds all arrays while it runs. Numba would count at
every access to an array of a named tuple; without, the counting kernel is 3 times faster and the full one 45 times. No
checks for division by zero either: block sizes are positive."""

inlined: Callable[[Callable[..., Any]], Callable[..., Any]] = njit(forceinline=True, **OPTIONS)
"""A part of a kernel: inlined, so that nothing is handed over at run time."""


def cache_folder() -> Path | None:
    """A writable folder of its own for this version of the kernel, or None."""
    digest = hashlib.sha256(numba.__version__.encode())
    for name in SOURCES:
        digest.update((Path(__file__).parent / name).read_bytes())
    bases = [os.environ.get("NUMBA_CACHE_DIR"), os.environ.get("XDG_CACHE_HOME"), os.path.expanduser("~/.cache")]
    for base in [*bases, os.path.join(tempfile.gettempdir(), f"goodfleet-{os.getuid()}")]:
        if not base or base.startswith("~"):
            continue
        folder = Path(base) / "goodfleet" / f"kernel-{digest.hexdigest()[:16]}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    return None


def cached_kernel(function: Callable[..., None]) -> Callable[..., None]:
    """Compile on first use, or load what an earlier process compiled."""
    folder = cache_folder()
    if folder is None:
        compiled: Callable[..., None] = njit(**OPTIONS)(function)
        return compiled
    settings: Any = config  # numba's settings are attributes made at import
    before = settings.CACHE_DIR
    settings.CACHE_DIR = str(folder)  # read while decorating, so other users of numba see no change
    try:
        compiled = njit(cache=True, **OPTIONS)(function)
        return compiled
    finally:
        settings.CACHE_DIR = before
