"""Verification of a bundle: files against hashes, and each variant's outputs against its recorded self-test."""

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bert_runtime.attention import open_attention_session
from bert_runtime.bundle.assets import check_asset
from bert_runtime.bundle.digest import DIGEST_KEY, check_digest
from bert_runtime.bundle.manifest import MANIFEST_NAME, PACKED, AttentionGraph, Manifest, Variant
from bert_runtime.cpu.native_kernels import native_kernels_record
from bert_runtime.cpu.session import Session
from bert_runtime.devices import CPU, Device, cuda_unavailable_reason
from bert_runtime.errors import BertError, CascadeBundleError, CudaUnavailableError, DeploymentError
from bert_runtime.loading import bundle_tokenizer, open_variant
from bert_runtime.machine import available_cores
from bert_runtime.model import Model
from bert_runtime.numerics import FloatArray
from bert_runtime.tasks import Outputs
from bert_runtime.variant_choice import can_run

__all__ = ["Check", "failed_checks", "self_test", "self_test_values", "verify"]

_MAX_SELF_TEST_VALUES = 1024
"""Values per input that a self-test records: as many as the widest usual embedding has.

More, such as a vocabulary's logits, would bloat the manifest.
"""

_KERNELS = "native kernels"

_TARGET_NAMES = {"cuda": "CUDA", "tensorrt": "TensorRT"}
"""Targets as they are spelled in text."""


@dataclass(frozen=True)
class Check:
    """The result of one check."""

    name: str
    passed: bool
    detail: str
    """The measurement, or the reason for a failure."""
    skipped: bool = False
    """Whether this machine could not check it; counts as passed."""


def verify(bundle: str | Path) -> list[Check]:
    """Check a bundle: every file against its hash, and every variant against its self-test.

    Returns:
        One check per file, the manifest first, then one of the native kernels and one per graph. Damage is a failed
        check, not an exception.

    Raises:
        BundleError: there is no manifest to check against.
        DeploymentError: this machine cannot run bundles, for example without onnxruntime.
    """
    path = Path(bundle)
    try:
        manifest = Manifest.read(path, verify=False)
    except CascadeBundleError:
        from bert_runtime.cascade.verification import verify_cascade

        return verify_cascade(path, Check, _check_manifest, verify)
    checks = [_check_manifest(path)]
    for asset in manifest.assets:
        try:
            check_asset(path, asset)
            checks.append(Check(asset.file, True, f"{asset.size_bytes} bytes, sha256 as recorded"))
        except BertError as error:
            checks.append(Check(asset.file, False, str(error)))
    checks.append(_check_kernels(manifest))
    checks += [_self_test(path, manifest, variant) for variant in manifest.variants]
    return checks if manifest.attention is None else [*checks, _attention_self_test(path, manifest, manifest.attention)]


def failed_checks(checks: Iterable[Check]) -> list[str]:
    """Return the name and the reason of each check that failed."""
    return [f"{check.name}: {check.detail}" for check in checks if not check.passed]


def _check_manifest(bundle: Path) -> Check:
    """Compare the manifest with its own digest."""
    values = json.loads((bundle / MANIFEST_NAME).read_text(encoding="utf-8"))
    try:
        check_digest(values)
    except BertError as error:
        return Check(MANIFEST_NAME, False, str(error))
    return Check(MANIFEST_NAME, True, "digest as recorded" if DIGEST_KEY in values else "has no digest")


def _check_kernels(manifest: Manifest) -> Check:
    """Say which native kernels made the manifest's numbers, and which run here; a difference is no failure."""
    recorded = manifest.extra.get("native_kernels")
    here = native_kernels_record()
    if not isinstance(recorded, dict):
        return Check(_KERNELS, True, f"not recorded; here {_kernels_text(here)}")
    if recorded == here:
        return Check(_KERNELS, True, f"{_kernels_text(here)}, as recorded")
    return Check(
        _KERNELS, True,
        f"recorded {_kernels_text(recorded)}, here {_kernels_text(here)}: outputs differ in rounding, by what the "
        "self-tests below say",
    )  # fmt: skip


def _kernels_text(record: dict[str, Any]) -> str:
    """Return a record of native kernels as text."""
    functions = record.get("functions") or []
    return f"{record['library']} with {len(functions)} functions" if record.get("library") else "none"


def self_test_values(outputs: Outputs) -> FloatArray:
    """Return the values that a self-test records for one input: all of them, or an even sample of at most 1,024."""
    values = outputs.flat
    return values[:: -(-len(values) // _MAX_SELF_TEST_VALUES)]


def _self_test(path: Path, manifest: Manifest, variant: Variant) -> Check:
    """Run a variant on the manifest's self-test inputs, and compare the outputs with the recorded ones."""
    name = f"self-test {variant.title}"
    if not can_run(variant):
        return Check(name, True, f"this processor has no {variant.instruction_set}", skipped=True)
    try:
        opened = _open_on_target(path, manifest, variant)
        if opened is None:
            return Check(name, True, "needs CUDA, since the CPU lacks its operators", skipped=True)
        return self_test(opened[0], manifest, variant, remark=opened[1])
    except DeploymentError:
        raise
    except BertError as error:
        return Check(name, False, str(error))


def self_test(model: Model, manifest: Manifest, variant: Variant, *, remark: str = "") -> Check:
    """Run the manifest's self-test inputs through an opened variant, and compare the outputs with the recorded ones.

    Args:
        model: the opened variant.
        manifest: the bundle's manifest.
        variant: the variant.
        remark: ends the check's detail.
    """
    found = [self_test_values(model.outputs([value])[0]) for value in manifest.self_test_inputs]
    tolerance = variant.self_test.tolerance
    drift = variant.drift.get("max_abs_difference")
    if isinstance(drift, float) and drift > tolerance and _other_kernels_run(model, manifest, variant):
        tolerance, remark = drift, f", the drift from FP32, since other kernels made the recorded outputs{remark}"
    return _compare(f"self-test {variant.title}", variant, found, tolerance, remark)


def _other_kernels_run(model: Model, manifest: Manifest, variant: Variant) -> bool:
    """Return whether other kernels than those of the recorded outputs run a variant's functions.

    INT8 kernels quantize values between operators in steps of their own. Outputs of one graph differ by 0.34 to 0.59 of
    its drift between AVX-512, AVX2 and no kernels (a toy classifier, MiniLM, a sparse encoder), where the recorded
    tolerance is 0.25 of it.
    """
    here: object = native_kernels_record()
    if isinstance(model.session, Session) and not model.session.kernels:
        here = {}
    return _kernels_of(variant, manifest.extra.get("native_kernels")) != _kernels_of(variant, here)


def _kernels_of(variant: Variant, record: object) -> tuple[object, ...]:
    """Return the library of a record and those of the variant's functions that it has; empty without any."""
    values = record if isinstance(record, dict) else {}
    recorded = values.get("functions")
    functions = sorted(set(variant.functions).intersection(map(str, recorded if isinstance(recorded, list) else ())))
    return (values.get("library"), *functions) if functions else ()


def _attention_self_test(path: Path, manifest: Manifest, graph: AttentionGraph) -> Check:
    """Run the attention graph on the self-test inputs, and compare the model's output with the FP32 variant's."""
    name = f"self-test {graph.title}"
    try:
        variant = manifest.variant("fp32")
        session = open_attention_session(path, manifest, graph, available_cores())
        model = Model(manifest.task, bundle_tokenizer(path, manifest), session)
        found = [self_test_values(model.outputs([value])[0]) for value in manifest.self_test_inputs]
    except DeploymentError:
        raise
    except BertError as error:
        return Check(name, False, str(error))
    remark = f"; {len(graph.outputs)} layers of {graph.num_heads} heads"
    return _compare(name, variant, found, variant.self_test.tolerance, remark)


def _compare(name: str, variant: Variant, found: list[FloatArray], tolerance: float, remark: str) -> Check:
    """Compare outputs with the recorded ones of a variant."""
    if not found:
        return Check(name, False, "the bundle has no self-tests")
    expected = [np.array(values, dtype=np.float32) for values in variant.self_test.outputs]
    expected_sizes, found_sizes = ([len(values) for values in arrays] for arrays in (expected, found))
    if expected_sizes != found_sizes:
        return Check(name, False, f"expected outputs of {expected_sizes} values, found {found_sizes}")
    difference = float(np.abs(np.concatenate(found) - np.concatenate(expected)).max())
    detail = f"max abs difference {difference:.2g}, tolerance {tolerance:.2g}{remark}"
    return Check(name, difference <= tolerance, detail)


def _open_on_target(path: Path, manifest: Manifest, variant: Variant) -> tuple[Model, str] | None:
    """Open a variant on its target, or else on the CPU, which computes the same outputs slowly.

    Return the model and a remark on where it runs, or `None` where the CPU lacks the graph's operators.
    """
    if variant.target == "cpu":
        return open_variant(path, manifest, variant, CPU), ""
    if cuda_unavailable_reason() is None:
        with suppress(CudaUnavailableError):
            return open_variant(path, manifest, variant, Device(kind=variant.target)), ""
    if variant.padding == PACKED:
        return None
    target = _TARGET_NAMES[variant.target]
    return open_variant(path, manifest, variant, CPU), f"; evaluated on the CPU, since {target} is not available"
