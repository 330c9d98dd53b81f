"""Checking a bundle: files against hashes, graphs against the runtime, answers against the recorded ones."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bert_runtime.bundle.manifest import PACKED, Manifest, Variant
from bert_runtime.devices import CPU, Device, cuda_unavailable_reason
from bert_runtime.errors import BertError, CudaUnavailableError, DeploymentError
from bert_runtime.loading import can_run, check_asset, open_variant
from bert_runtime.model import Model
from bert_runtime.numerics import FloatArray
from bert_runtime.tasks import Outputs

__all__ = ["Check", "self_test_values", "verify"]

_MAX_SELF_TEST_VALUES = 1024
"""As many as the widest usual embedding; a vocabulary's logits would fill the manifest."""


@dataclass(frozen=True)
class Check:
    """One thing that was checked, and what was found."""

    name: str
    passed: bool
    detail: str
    skipped: bool = False
    """Whether this machine could not check it; counts as passed."""


def verify(bundle: str | Path) -> list[Check]:
    """Checks everything a bundle promises that can be checked without its checkpoint.

    Raises `BundleError` when there is no manifest to check against; all other findings are in the list.
    """
    path = Path(bundle)
    manifest = Manifest.read(path)
    checks = []
    for asset in manifest.assets:
        try:
            check_asset(path, asset)
            checks.append(Check(asset.file, True, f"{asset.size_bytes} bytes, sha256 as recorded"))
        except BertError as error:
            checks.append(Check(asset.file, False, str(error)))
    return checks + [_self_test(path, manifest, variant) for variant in manifest.variants]


def self_test_values(outputs: Outputs) -> FloatArray:
    """The numbers by which a bundle is tested for one input: all of them, or of many every so many-th."""
    values = outputs.flat
    return values[:: -(-len(values) // _MAX_SELF_TEST_VALUES)]


def _self_test(path: Path, manifest: Manifest, variant: Variant) -> Check:
    """Loads a variant and compares its answers with those it gave when the bundle was made."""
    name = f"self-test {variant.title}"
    if not can_run(variant):
        return Check(name, True, f"this processor has no {variant.instruction_set}", skipped=True)
    try:
        opened = _opened(path, manifest, variant)
        if opened is None:
            return Check(name, True, "needs CUDA, whose operators it is made of", skipped=True)
        model, remark = opened
        found = [self_test_values(model.outputs([each])[0]) for each in manifest.self_test_inputs]
    except DeploymentError:
        raise
    except BertError as error:
        return Check(name, False, str(error))
    if not found:
        return Check(name, False, "the bundle has no self-tests")
    expected = [np.array(each, dtype=np.float32) for each in variant.self_test.outputs]
    sizes = [[len(each) for each in values] for values in (expected, found)]
    if sizes[0] != sizes[1]:
        return Check(name, False, f"expected outputs of {sizes[0]} numbers, found {sizes[1]}")
    difference = float(np.abs(np.concatenate(found) - np.concatenate(expected)).max())
    tolerance = variant.self_test.tolerance
    found_text = f"max abs difference {difference:.2g}, tolerance {tolerance:.2g}{remark}"
    return Check(name, difference <= tolerance, found_text)


_NAMES = {"cuda": "CUDA", "tensorrt": "TensorRT"}
"""Targets as they are written."""


def _opened(path: Path, manifest: Manifest, variant: Variant) -> tuple[Model, str] | None:
    """The variant on the device it is made for, or else on the CPU, which gives the same answers slowly; and which.

    `None` for one that the CPU has no operators for.
    """
    if variant.target == "cpu":
        return open_variant(path, manifest, variant, CPU), ""
    if cuda_unavailable_reason() is None:
        with suppress(CudaUnavailableError):
            return open_variant(path, manifest, variant, Device(kind=variant.target)), ""
    if variant.padding == PACKED:
        return None
    return open_variant(path, manifest, variant, CPU), f"; evaluated on the CPU, for want of {_NAMES[variant.target]}"
