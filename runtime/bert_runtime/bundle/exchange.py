"""Exchange of two folders in one step, where the system and the file system can."""

import ctypes
import errno
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["exchange_folders"]

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2

_UNSUPPORTED = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM}
"""The kernel, the file system or a sandbox has no exchange."""


def exchange_folders(first: Path, second: Path) -> bool:
    """Exchange the names of two folders of one file system, so that each path always leads to one of the two.

    Returns:
        Whether they were exchanged; false where the system (other than Linux) or the file system cannot.

    Raises:
        OSError: a folder is missing, or may not be renamed.
    """
    function = _renameat2()
    if function is None:
        return False
    if function(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _UNSUPPORTED:
        return False
    raise OSError(code, os.strerror(code), str(first), None, str(second))


@cache
def _renameat2() -> Any | None:
    """Return the C library's `renameat2`, or `None` where it has none."""
    if sys.platform != "linux":
        return None
    function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if function is not None:
        function.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    return function
