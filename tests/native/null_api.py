"""A runtime that does not have the version of ONNX Runtime's C API that the kernels ask for.

As a program: `python null_api.py LIBRARY [VERSION]` registers the kernels with a runtime that has that version alone,
or none; prints the message of the status that it is given.
"""

import ctypes
import sys

CREATE_STATUS = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)
GET_API = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)


class ApiBase(ctypes.Structure):
    """OrtApiBase."""

    _fields_ = (("GetApi", GET_API), ("GetVersionString", ctypes.c_void_p))


@CREATE_STATUS
def create_status(_: int, message: bytes) -> int:
    sys.stdout.write(f"{message.decode()}\n")
    return 1


def main(library: str, *versions: str) -> None:
    """Register the kernels."""
    table = (ctypes.c_void_p * 1)(ctypes.cast(create_status, ctypes.c_void_p))
    base = ApiBase(GET_API(lambda version: ctypes.addressof(table) if str(version) in versions else None), None)
    register = ctypes.CDLL(library).RegisterCustomOps
    register.restype = ctypes.c_void_p
    status = register(None, ctypes.byref(base))
    assert (status is not None) == bool(versions)


if __name__ == "__main__":
    main(*sys.argv[1:])
