"""Our kernels, held against the operators that their functions consist of."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

from bert_export.kernels import FUNCTIONS
from bert_runtime.kernels import DOMAIN, LIBRARY, kernel_names
from bert_runtime.machine import cpu_flags
from bert_runtime.session import open_onnxruntime_session

Array = NDArray[Any]

WITH_VNNI = {"avx512_vnni", "avx512bw", "avx512dq", "avx512vl"} <= cpu_flags()


def kernel(name: str) -> pytest.MarkDecorator:
    """A test of one kernel, which is skipped on processors that it is not for."""
    return pytest.mark.skipif(name not in kernel_names(), reason=f"{name} has no kernel here: {sorted(kernel_names())}")


class Both:
    """One call of a function, with kernels and without."""

    def __init__(
        self,
        name: str,
        inputs: Mapping[str, Array],
        constants: Mapping[str, Array],
        folder: Path,
        **attributes: Any,
    ) -> None:
        function = FUNCTIONS[name]
        values = {
            key: ir.Value(
                name=key,
                type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
                shape=ir.Shape([f"{key}_{axis}" for axis in range(array.ndim)]),
            )
            for key, array in inputs.items()
        }
        weights = {
            key: ir.Value(name=key, const_value=ir.tensor(array, name=key), type=ir.TensorType(ir.tensor(array).dtype))
            for key, array in constants.items()
        }
        arguments = [{**values, **weights}[each.name or ""] for each in function.inputs]
        outputs = [ir.Value(name=each.name) for each in function.outputs]
        node = ir.node(name, arguments, attributes, domain=DOMAIN, outputs=outputs)
        for each in outputs:
            is_bytes = each.name == "bytes" or (name in ("QuantizedLinearGelu", "QuantizedAttention"))
            each.type = ir.TensorType(ir.DataType.UINT8 if is_bytes else ir.DataType.FLOAT)
        opsets = {"": 23, "com.microsoft": 1, DOMAIN: 1}
        graph = ir.Graph([*values.values()], outputs, nodes=[node], initializers=[*weights.values()], name="call",
                         opset_imports=opsets)  # fmt: skip
        model = ir.Model(graph, ir_version=10, functions=[function])
        self.inputs = inputs
        path = folder / "call.onnx"
        ir.save(model, path)
        self._sessions = [open_onnxruntime_session(path, 2, int8=True, kernels=kernels) for kernels in (True, False)]

    def outputs(self, **inputs: Array) -> tuple[list[Array], list[Array]]:
        """What the kernel and what the operators answer."""
        ours, theirs = (session.run(None, {**self.inputs, **inputs}) for session in self._sessions)
        return ours, theirs


def linear_inputs(rows: tuple[int, ...], inputs: int, outputs: int) -> tuple[dict[str, Array], dict[str, Array]]:
    rng = np.random.default_rng(0)
    x = {"x": rng.integers(0, 256, (*rows, inputs), dtype=np.uint8)}
    return x, {
        "weight": rng.integers(-128, 128, (inputs, outputs), dtype=np.int8),
        "x_scale": np.float32(0.02),
        "scales": rng.uniform(1e-4, 2e-3, outputs).astype(np.float32),
        "x_zero_point": np.uint8(117),
        "bias": rng.normal(size=outputs).astype(np.float32),
    }


ROWS = [(1, 1), (1, 7), (1, 12), (2, 13), (1, 95), (3, 33), (8, 128)]
SIZES = [(4, 1), (32, 32), (64, 33), (388, 100), (96, 1551)]


def steps_apart(ours: Array, theirs: Array) -> tuple[int, float]:
    """The largest difference of bytes, and the share of those that differ."""
    apart = np.abs(ours.astype(int) - theirs.astype(int))
    return int(apart.max(initial=0)), float((apart > 0).mean())


@kernel("QuantizedLinear")
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("rows", ROWS, ids=str)
def test_products_are_the_same(rows: tuple[int, ...], size: tuple[int, int], tmp_path: Path) -> None:
    both = Both("QuantizedLinear", *linear_inputs(rows, *size), tmp_path)
    (ours,), (theirs,) = both.outputs()
    assert ours.shape == (*rows, size[1])
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5 * float(np.abs(theirs).max()))


@kernel("QuantizedLinear")
@pytest.mark.parametrize("byte", [0, 255])
def test_products_at_the_ends_of_the_range_do_not_saturate(byte: int, tmp_path: Path) -> None:
    _, constants = linear_inputs((2, 5), 3072, 64)
    constants["weight"] = np.full_like(constants["weight"], -128)
    both = Both("QuantizedLinear", {"x": np.full((2, 5, 3072), byte, dtype=np.uint8)}, constants, tmp_path)
    (ours,), _ = both.outputs()
    exact = (byte - 117) * 0.02 * -128.0 * 3072 * constants["scales"] + constants["bias"]
    np.testing.assert_allclose(ours, np.broadcast_to(exact, ours.shape), rtol=1e-5)


@kernel("QuantizedLinear")
def test_weights_that_differ_in_one_byte_are_not_shared(tmp_path: Path) -> None:
    inputs, constants = linear_inputs((1, 3), 64, 70)
    other = constants["weight"].copy()
    other[63, 69] ^= 1
    sessions = [
        Both("QuantizedLinear", inputs, {**constants, "weight": weight}, tmp_path)
        for weight in (constants["weight"], other, constants["weight"])
    ]
    first, second, third = (each.outputs()[0][0] for each in sessions)
    np.testing.assert_array_equal(first, third)
    np.testing.assert_array_equal(first[..., :69], second[..., :69])
    assert (first[..., 69] != second[..., 69]).all()
    del sessions[0]  # what is shared stays as long as one session has it
    np.testing.assert_array_equal(sessions[-1].outputs()[0][0], first)


@kernel("QuantizedLinear")
def test_no_rows_are_no_error(tmp_path: Path) -> None:
    both = Both("QuantizedLinear", *linear_inputs((0, 4), 32, 48), tmp_path)
    (ours,), _ = both.outputs()
    assert ours.shape == (0, 4, 48)


@kernel("QuantizedLinear")
def test_an_input_of_another_width_is_an_error(tmp_path: Path) -> None:
    both = Both("QuantizedLinear", *linear_inputs((1, 4), 32, 48), tmp_path)
    with pytest.raises(Exception, match=r"expected an input \[.., K\] for a weight \[K, N\]"):
        both.outputs(x=np.zeros((1, 4, 36), dtype=np.uint8))


@kernel("QuantizedLinearGelu")
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("rows", ROWS, ids=str)
def test_gelu_of_products_is_the_same_byte(rows: tuple[int, ...], size: tuple[int, int], tmp_path: Path) -> None:
    inputs, constants = linear_inputs(rows, *size)
    exact = np.abs((inputs["x"].astype(np.float64) - 117) @ constants["weight"]).max() * 0.02
    constants["scales"] = constants["scales"] * np.float32(5 / (exact * 1e-3))  # products from -10 to 10
    both = Both(
        "QuantizedLinearGelu", inputs, {**constants, "y_scale": np.float32(0.03), "y_zero_point": np.uint8(6)}, tmp_path
    )
    (ours,), (theirs,) = both.outputs()
    assert ours.shape == (*rows, size[1])
    most, share = steps_apart(ours, theirs)
    assert most <= 1
    assert share < 0.01 or ours.size < 200


@kernel("QuantizedLinearGelu")
def test_what_no_byte_reaches_is_the_last_byte(tmp_path: Path) -> None:
    inputs, constants = linear_inputs((1, 1), 4, 3)
    constants["bias"] = np.array([1e30, np.inf, -1e30], dtype=np.float32)
    output = {"y_scale": np.float32(1e-3), "y_zero_point": np.uint8(6)}
    both = Both("QuantizedLinearGelu", inputs, constants | output, tmp_path)
    assert [each.tolist() for each in both.outputs()[0]] == [[[[255, 255, 6]]]]


@kernel("QuantizedLinearGelu")
def test_gelu_is_exact_within_a_ten_thousandth(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    _, constants = linear_inputs((1, 1), 4, 1)
    x = np.linspace(-12, 12, 200_001, dtype=np.float32)
    constants |= {"weight": np.zeros((4, len(x)), dtype=np.int8), "scales": np.zeros_like(x), "bias": x}
    exact = torch.nn.functional.gelu(torch.from_numpy(x).double()).numpy()
    for step, zero_point in ((1e-3, 170), (4e-3, 43), (0.013, 13), (0.05, 4)):  # up to 12, ever more coarsely
        output = {"y_scale": np.float32(step), "y_zero_point": np.uint8(zero_point)}
        both = Both("QuantizedLinearGelu", {"x": np.zeros((1, 1, 4), dtype=np.uint8)}, constants | output, tmp_path)
        (ours,), _ = both.outputs()
        values = (ours[0, 0].astype(float) - zero_point) * step
        inside = (ours[0, 0] > 0) & (ours[0, 0] < 255)
        assert inside.sum() > 1000
        assert np.abs(values - exact)[inside].max() <= 0.5 * step + 1e-4
        assert (ours[0, 0][exact > (255.6 - zero_point) * step] == 255).all()


def attention_inputs(batch: int, tokens: int, heads: int, size: int, spread: float = 1.0) -> dict[str, Array]:
    rng = np.random.default_rng(1)
    qkv = rng.normal(scale=spread, size=(batch, tokens, 3 * heads * size)).astype(np.float32)
    lengths = rng.integers(1, tokens + 1, batch)
    mask = (np.arange(tokens) < lengths[:, None])[:, None, None]
    return {
        "qkv": qkv,
        "mask": np.broadcast_to(mask, (batch, 1, tokens, tokens)).copy(),
        "is_full": np.asarray(False),
    }


ATTENTION_RANGE = {"y_scale": np.float32(0.02), "y_zero_point": np.uint8(128)}


@kernel("QuantizedAttention")
@pytest.mark.parametrize(
    ("batch", "tokens", "heads", "size"),
    [(1, 1, 1, 8), (1, 2, 12, 32), (2, 13, 2, 16), (3, 33, 4, 20), (1, 64, 12, 64), (2, 100, 2, 96), (1, 512, 1, 128),
     (1, 700, 1, 7)],
)  # fmt: skip
@pytest.mark.parametrize("full", [True, False], ids=["full", "masked"])
def test_attention_is_the_same_byte(batch: int, tokens: int, heads: int, size: int, full: bool, tmp_path: Path) -> None:
    inputs = attention_inputs(batch, tokens, heads, size) | {"is_full": np.asarray(full)}
    both = Both("QuantizedAttention", inputs, ATTENTION_RANGE, tmp_path, num_heads=heads, scale=size**-0.5)
    (ours,), (theirs,) = both.outputs()
    assert ours.shape == (batch, tokens, heads * size)
    most, share = steps_apart(ours, theirs)
    assert most <= 1
    assert share < 0.05 or ours.size < 200


@kernel("QuantizedAttention")
def test_attention_to_one_key_among_many_is_the_same_byte(tmp_path: Path) -> None:
    """Scores of hundreds: nearly all probabilities vanish."""
    inputs = attention_inputs(2, 60, 2, 64, spread=8.0)
    wide = {"y_scale": np.float32(0.25), "y_zero_point": np.uint8(128)}
    both = Both("QuantizedAttention", inputs, wide, tmp_path, num_heads=2, scale=0.125)
    (ours,), (theirs,) = both.outputs()
    most, share = steps_apart(ours, theirs)
    assert most <= 1
    assert share < 0.05


@kernel("QuantizedAttention")
@pytest.mark.parametrize(("tokens", "top"), [(400, 6.0), (512, 9.05), (512, 12.0), (2048, 7.7), (4096, 7.0)])
def test_small_probabilities_beside_a_large_one_are_not_rounded_away(tokens: int, top: float, tmp_path: Path) -> None:
    """One key has much of the attention, and a value of nothing; thousands of others share what is left."""
    inputs = attention_inputs(1, tokens, 1, 32)
    qkv = inputs["qkv"].reshape(tokens, 3, 32)
    scores = np.random.default_rng(3).normal(0, 0.5, (tokens, 1)).astype(np.float32)
    scores[0] = top
    qkv[:, 0], qkv[:, 1], qkv[:, 2] = 1.0, scores / np.sqrt(32), 1.0
    qkv[0, 2] = 0.0
    inputs["is_full"] = np.asarray(True)
    output = {"y_scale": np.float32(1 / 255), "y_zero_point": np.uint8(0)}
    both = Both("QuantizedAttention", inputs, output, tmp_path, num_heads=1, scale=32**-0.5)
    (ours,), (theirs,) = both.outputs()
    assert steps_apart(ours, theirs)[0] <= 1


@kernel("QuantizedAttention")
def test_a_row_whose_keys_are_all_masked_is_zero_and_zeros_stay_zeros(tmp_path: Path) -> None:
    inputs = attention_inputs(2, 20, 2, 16)
    inputs["mask"][1] = False
    both = Both("QuantizedAttention", inputs, ATTENTION_RANGE, tmp_path, num_heads=2, scale=0.25)
    (ours,), (theirs,) = both.outputs()
    assert steps_apart(ours[0], theirs[0])[0] <= 1
    assert (ours[1] == 128).all()
    (silent,), _ = both.outputs(qkv=np.zeros_like(inputs["qkv"]))
    assert (silent == 128).all()


@kernel("QuantizedAttention")
@pytest.mark.parametrize("holes", [True, False])
def test_masked_keys_do_not_count(holes: bool, tmp_path: Path) -> None:
    inputs = attention_inputs(1, 40, 2, 32)
    kept = np.arange(40) % 3 != 1 if holes else np.arange(40) < 17
    inputs["mask"][:] = kept
    both = Both("QuantizedAttention", inputs, ATTENTION_RANGE, tmp_path, num_heads=2, scale=32**-0.5)
    (before,), _ = both.outputs()
    changed = inputs["qkv"].copy()
    changed[:, ~kept, 64:] = 50.0
    for of_queries in (50.0, 1e30, np.inf, np.nan):  # nor do the queries of padded rows
        changed[:, ~kept, :64] = of_queries
        (after,), _ = both.outputs(qkv=changed)
        np.testing.assert_array_equal(before[:, kept], after[:, kept])
    changed[:, ~kept, :64] = inputs["qkv"][:, ~kept, :64]
    (unmasked,), _ = both.outputs(qkv=changed, is_full=np.asarray(True))
    assert steps_apart(before, unmasked)[0] > 1


@kernel("QuantizedAttention")
def test_a_mask_of_another_size_is_an_error(tmp_path: Path) -> None:
    inputs = attention_inputs(1, 8, 2, 16)
    both = Both("QuantizedAttention", inputs, ATTENTION_RANGE, tmp_path, num_heads=2, scale=0.25)
    with pytest.raises(Exception, match=r"expected a mask \[B, 1, T, T\]"):
        both.outputs(mask=np.ones((1, 1, 1, 8), dtype=np.bool_))


@kernel("AddNormQuantize")
def test_tensors_of_two_shapes_are_an_error(tmp_path: Path) -> None:
    ones = np.ones(32, dtype=np.float32)
    constants: dict[str, Array] = dict.fromkeys(("gamma", "beta", "smoothing"), ones)
    constants |= {"scale": np.asarray(np.float32(0.1)), "zero_point": np.asarray(np.uint8(0))}
    x = np.ones((2, 3, 32), dtype=np.float32)
    both = Both("AddNormQuantize", {"x": x, "residual": x}, constants, tmp_path, epsilon=1e-12)
    with pytest.raises(Exception, match="of one shape"):
        both.outputs(residual=x.reshape(3, 2, 32))


@kernel("AddNormQuantize")
@pytest.mark.parametrize("columns", [1, 16, 33, 384, 1000])
@pytest.mark.parametrize("rows", ROWS, ids=str)
def test_norms_are_the_same(rows: tuple[int, ...], columns: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    inputs: dict[str, Array] = {
        name: rng.normal(3.0, 2.0, (*rows, columns)).astype(np.float32) for name in ("x", "residual")
    }
    vectors = {name: rng.normal(1.0, 0.5, columns).astype(np.float32) for name in ("gamma", "beta", "smoothing")}
    constants = {**vectors, "scale": np.float32(0.03), "zero_point": np.uint8(100)}
    both = Both("AddNormQuantize", inputs, constants, tmp_path, epsilon=1e-12)
    (y, bytes_), (exact, exact_bytes) = both.outputs()
    np.testing.assert_allclose(y, exact, rtol=1e-4, atol=2e-5)
    most, share = steps_apart(bytes_, exact_bytes)
    assert most <= 1
    assert share < 0.01 or y.size < 200


def test_calls_from_many_threads_agree(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    inputs = attention_inputs(2, 50, 4, 32)
    both = Both("QuantizedAttention", inputs, ATTENTION_RANGE, tmp_path, num_heads=4, scale=32**-0.5)
    shorter = attention_inputs(1, 9, 4, 32)
    expected = [both.outputs(**each)[0][0] for each in (inputs, shorter)]
    with ThreadPoolExecutor(8) as pool:
        answers = [*pool.map(lambda i: both.outputs(**(inputs, shorter)[i % 2])[0][0], range(64))]
    assert all((answer == expected[i % 2]).all() for i, answer in enumerate(answers))


def test_processors_with_vnni_have_them() -> None:
    """The library itself asks the processor; here /proc/cpuinfo says what that should find."""
    if not LIBRARY.is_file():
        pytest.skip("the package was built without a C++ compiler, or not for Linux on x86-64")
    everywhere = {"QuantizedAttention", "AddNormQuantize"} if WITH_VNNI else set()
    products = {"QuantizedLinear", "QuantizedLinearGelu"} if WITH_VNNI and "amx_int8" not in cpu_flags() else set()
    assert set(kernel_names()) == everywhere | products


def test_every_kernel_has_a_function() -> None:
    assert set(kernel_names()) <= set(FUNCTIONS)
