"""Run the hostile graphs whose function a kernel library has: `run_hostile_graphs.py LIBRARY`.

Prints a line of JSON per graph, [name, error message or null], so that another process learns how far it came.
"""

import ctypes
import json
import sys
from itertools import count as counter

from hostile_graphs import HostileGraph, hostile_graphs


def _error_of(graph: HostileGraph, library: str) -> str | None:
    """Run a graph; return the error that it ends with, or `None`."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 2, 4
    options.register_custom_ops_library(library)
    try:
        session = onnxruntime.InferenceSession(graph.to_bytes(), options, providers=["CPUExecutionProvider"])
        session.run(None, graph.inputs())
    except Exception as error:  # onnxruntime's exceptions share no base class but Exception
        return str(error)
    return None


def _functions_of(library: str) -> set[str]:
    """Return the functions that a kernel library has on this CPU."""
    name = ctypes.CDLL(library).KernelName
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.c_size_t]
    return {found.decode() for found in iter(map(name, counter()).__next__, None)}


def main(library: str) -> None:
    """Run the graphs."""
    functions = _functions_of(library)
    for graph in hostile_graphs().values():
        if graph.function in functions:
            sys.stdout.write(json.dumps([graph.name, _error_of(graph, library)]) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
