"""The variants that an export plans for targets, precisions and padding modes."""

import pytest

from bert_export.errors import ExportError
from bert_export.targets import VariantPlan, check_gpu_targets, plan_paddings, plan_variants
from bert_models import FAMILIES


@pytest.mark.parametrize(
    ("targets", "precisions", "expected"),
    [
        (["cpu"], None, VariantPlan(("fp32", "int8"), (), ())),
        (["cuda"], None, VariantPlan(("fp32",), ("fp16",), ())),
        (["tensorrt"], None, VariantPlan(("fp32",), (), ("fp16",))),
        (["cpu", "cuda"], None, VariantPlan(("fp32", "int8"), ("fp16",), ())),
        (["cuda"], ["fp32"], VariantPlan(("fp32",), ("fp32",), ())),
        (["cpu"], ["bf16"], VariantPlan(("fp32", "bf16"), (), ())),
        (["cpu"], ["bf16", "int8"], VariantPlan(("fp32", "int8", "bf16"), (), ())),
        (["cpu", "cuda"], ["bf16", "fp16"], VariantPlan(("fp32", "bf16"), ("fp16",), ())),
        (["cpu", "cuda"], ["int8", "fp16"], VariantPlan(("fp32", "int8"), ("fp16",), ())),
        (["cuda", "tensorrt"], ["fp16", "fp32"], VariantPlan(("fp32",), ("fp32", "fp16"), ("fp32", "fp16"))),
    ],
)
def test_plan(targets: list[str], precisions: list[str] | None, expected: VariantPlan) -> None:
    assert plan_variants(targets, precisions) == expected


@pytest.mark.parametrize(
    ("targets", "precisions", "message"),
    [
        (["cuda"], ["int8"], "FP16 for a GPU: the fused INT8 operators have kernels on the CPU alone"),
        (["cpu", "cuda"], ["int8"], "export with --precision fp16"),
        (["cpu"], ["fp16"], "FP16 is for a GPU: ONNX Runtime's CPU provider has no FP16 matmul"),
        (["tpu"], None, "expected targets among cpu, cuda, tensorrt, found tpu"),
        (["cuda"], ["bf16"], "bf16 is for the CPU: a GPU multiplies as fast in FP16"),
        (["cuda"], ["bf16", "fp16"], "bf16 with --target cpu"),
        (["cpu", "tensorrt"], ["bf16", "int8"], "export with --precision fp16"),
        (["cpu"], ["fp4"], "expected precisions among fp32, fp16, int8, bf16, found fp4"),
    ],
)
def test_precisions_that_no_target_runs_are_refused(
    targets: list[str], precisions: list[str] | None, message: str
) -> None:
    with pytest.raises(ExportError, match=message):
        plan_variants(targets, precisions)


def test_masked_is_always_among_the_padding_modes() -> None:
    cuda, cpu = (plan_variants([target], None) for target in ("cuda", "cpu"))
    assert plan_paddings(None, cuda) == ("masked", "unmasked", "packed")
    assert plan_paddings(["masked"], cuda) == ("masked",)
    assert plan_paddings(["packed"], cuda) == ("masked", "packed")
    assert plan_paddings(None, cpu)


def test_padding_modes_without_cuda_or_unknown_are_refused() -> None:
    cuda, cpu = (plan_variants([target], None) for target in ("cuda", "cpu"))
    with pytest.raises(ExportError, match="packed graphs are for CUDA"):
        plan_paddings(["packed"], cpu)
    with pytest.raises(ExportError, match="expected padding modes among masked, unmasked, packed, found lengths"):
        plan_paddings(["lengths"], cuda)


@pytest.mark.parametrize("target", ["cuda", "tensorrt"])
def test_disentangled_attention_is_refused_on_a_gpu(target: str) -> None:
    config = FAMILIES["deberta-v2"].preset("base")
    check_gpu_targets(plan_variants(["cpu"], None), config)
    with pytest.raises(ExportError, match=r"deberta-v2 is exported for the CPU alone: .*; export with --target cpu"):
        check_gpu_targets(plan_variants([target], None), config)
    check_gpu_targets(plan_variants([target], None), FAMILIES["bert"].preset("base"))
