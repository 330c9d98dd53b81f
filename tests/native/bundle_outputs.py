"""Print what a bundle computes here, with native kernels and without, as JSON: `bundle_outputs.py BUNDLE [FLAG …]`.

The flags are those of the processor whose kernels are to run; without any, this processor's. test_aarch64_bundles.py
runs it on this machine and on an emulated one.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

from bert_runtime import load
from bert_runtime.bundle.manifest import Manifest
from bert_runtime.cpu import native_kernels
from bert_runtime.variant_choice import choose_variant
from bert_runtime.verification import self_test_values


def main(bundle: Path, flags: list[str]) -> None:
    """Print the library, its functions, and the outputs of each precision, with kernels and without.

    `default` is the precision that runs where the bundle's default is bf16.
    """
    if flags:
        native_kernels.cpu_flags = lambda: frozenset(flags)  # type: ignore[assignment]
    manifest = Manifest.read(bundle)
    inputs = manifest.self_test_inputs
    outputs = {}
    for precision in ("fp32", "int8", "bf16"):
        for kernels in (True, False):
            model = load(bundle, precision=precision, kernels=kernels)
            values = [self_test_values(output).tolist() for output in model.outputs(inputs)]
            outputs[f"{precision} {'with' if kernels else 'without'} kernels"] = values
    default = choose_variant(replace(manifest, default_precision="bf16"), "auto").precision
    found = {**native_kernels.native_kernels_record(), "default": default, "outputs": outputs}
    print(json.dumps(found))  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
