"""Print what a bundle computes here, with native kernels and without, as JSON: `bundle_outputs.py BUNDLE [FLAG …]`.

The flags are those of the processor whose kernels are to run; without any, this processor's. test_aarch64_bundles.py
runs it on this machine and on an emulated one.
"""

import json
import sys
from pathlib import Path

from bert_runtime import load
from bert_runtime.bundle.manifest import Manifest
from bert_runtime.cpu import native_kernels
from bert_runtime.verification import self_test_values


def main(bundle: Path, flags: list[str]) -> None:
    """Print the library, its functions, and the outputs of each precision, with kernels and without."""
    if flags:
        native_kernels.cpu_flags = lambda: frozenset(flags)  # type: ignore[assignment]
    inputs = Manifest.read(bundle).self_test_inputs
    outputs = {}
    for precision in ("fp32", "int8"):
        for kernels in (True, False):
            model = load(bundle, precision=precision, kernels=kernels)
            values = [self_test_values(output).tolist() for output in model.outputs(inputs)]
            outputs[f"{precision} {'with' if kernels else 'without'} kernels"] = values
    print(json.dumps({**native_kernels.native_kernels_record(), "outputs": outputs}))  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
