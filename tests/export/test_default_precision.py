"""The default precision: when INT8 is chosen, and the reason that the bundle states."""

from dataclasses import dataclass, replace
from typing import Any

import pytest

from bert_export.default_precision import choose_default_precision
from bert_runtime.bundle.manifest import Asset, SelfTest, Variant
from bert_runtime.tasks import SentenceEmbedding, TextClassification

CLASSIFIER = TextClassification(labels=("a", "b"))
EMBEDDING = SentenceEmbedding(dimensions=4)


@dataclass
class Built:
    """As much of a built variant as the choice reads."""

    variant: Variant


def variants(speedup: float, *, accuracy: tuple[float, float] | None = None, **drift: float) -> list[Any]:
    base = Variant(
        precision="fp32", target="cpu", model=Asset(file="m", size_bytes=1, sha256=""), opset=23,
        self_test=SelfTest(outputs=(), tolerance=1e-4), latency_ms={"1x16": 1.0, "1x128": 10.0},
    )  # fmt: skip
    int8 = replace(
        base, precision="int8", drift={**drift, "texts": 10}, latency_ms={"1x16": 1.0, "1x128": 10.0 / speedup}
    )
    if accuracy is not None:
        base, int8 = (
            replace(variant, metrics={"accuracy": value, "examples": 200})
            for variant, value in zip((base, int8), accuracy, strict=True)
        )
    return [Built(base), Built(int8)]


@pytest.mark.parametrize(
    ("before", "after", "max_drop", "chosen"),
    [(0.9, 0.9, 0.0, "int8"), (0.9, 0.895, 0.6, "int8"), (0.9, 0.88, 1.0, "fp32"), (0.9, 0.95, 0.0, "int8")],
)
def test_drop_of_the_metric_decides_for_or_against_int8(
    before: float, after: float, max_drop: float, chosen: str
) -> None:
    default = choose_default_precision(
        CLASSIFIER, variants(2.0, accuracy=(before, after), label_agreement=0.98), max_drop
    )
    assert default.precision == chosen
    assert default.faithful == (("fp32", "int8") if chosen == "int8" else ("fp32",))
    assert f"INT8 accuracy {after:.4f} against {before:.4f} in FP32 on 200 examples" in default.reason
    assert "INT8 runs 2.00× as fast at 1x128" in default.reason


def test_int8_that_is_slower_is_not_the_default() -> None:
    default = choose_default_precision(CLASSIFIER, variants(0.9, accuracy=(0.9, 0.9), label_agreement=1.0), 1.0)
    assert (default.precision, default.faithful) == ("fp32", ("fp32", "int8"))
    assert "0.90× as fast" in default.reason


@pytest.mark.parametrize(("agreement", "chosen"), [(0.975, "int8"), (0.968, "fp32")])
def test_agreement_decides_without_a_labelled_file(agreement: float, chosen: str) -> None:
    default = choose_default_precision(CLASSIFIER, variants(2.0, label_agreement=agreement), 1.0)
    assert default.precision == chosen
    assert "no labelled file was given" in default.reason


def test_metric_that_stands_still_does_not_excuse_other_answers() -> None:
    default = choose_default_precision(CLASSIFIER, variants(2.0, accuracy=(0.9, 0.9), label_agreement=0.968), 1.0)
    assert (default.precision, default.faithful) == ("fp32", ("fp32",))
    assert "label_agreement of INT8 with FP32 is 0.9680 on 10 texts, where 0.97 is asked" in default.reason


@pytest.mark.parametrize(("similarity", "chosen"), [(0.995, "int8"), (0.985, "fp32")])
def test_cosine_decides_for_embeddings(similarity: float, chosen: str) -> None:
    assert choose_default_precision(EMBEDDING, variants(2.0, mean_cosine=similarity), 1.0).precision == chosen


def test_single_variant_is_the_default() -> None:
    default = choose_default_precision(CLASSIFIER, variants(2.0, label_agreement=1.0)[:1], 1.0)
    assert default == ("fp32", "the only variant", ("fp32",))


def test_bf16_without_rounded_activations_is_no_evidence() -> None:
    """Made where there are no bf16 kernels: another processor rounds more."""
    fp32, int8 = (built.variant for built in variants(2.0, label_agreement=1.0))
    bf16 = replace(int8, precision="bf16", evaluated_on="a processor without bf16 kernels")
    default = choose_default_precision(CLASSIFIER, [Built(fp32), Built(bf16)], 1.0)  # type: ignore[list-item]
    assert (default.precision, default.faithful) == ("fp32", ("fp32",))
    assert default.reason.endswith("; bf16 was evaluated on a processor without bf16 kernels")
