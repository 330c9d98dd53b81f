"""Our kernels for products and norms, held against the operators that their functions consist of."""

from pathlib import Path

import numpy as np
import pytest

from bert_export.kernel_functions import FUNCTIONS
from bert_runtime.cpu.native_kernels import kernel_library, kernel_names
from bert_runtime.machine import cpu_flags

from .kernel_calls import Array, Both, steps_apart

pytestmark = pytest.mark.usefixtures("each_library")


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


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("rows", ROWS, ids=str)
def test_products_are_the_same(rows: tuple[int, ...], size: tuple[int, int], tmp_path: Path) -> None:
    both = Both("QuantizedLinear", *linear_inputs(rows, *size), tmp_path)
    (ours,), (theirs,) = both.outputs()
    assert ours.shape == (*rows, size[1])
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5 * float(np.abs(theirs).max()))


@pytest.mark.parametrize("weight", [-128, -65, -64, 64, 65, 127])
@pytest.mark.parametrize("byte", [0, 255])
def test_products_at_the_ends_of_the_range_do_not_saturate(byte: int, weight: int, tmp_path: Path) -> None:
    """Bytes from -64 to 64 may be multiplied in another way than all others."""
    _, constants = linear_inputs((2, 5), 3072, 64)
    constants["weight"] = np.full_like(constants["weight"], weight)
    both = Both("QuantizedLinear", {"x": np.full((2, 5, 3072), byte, dtype=np.uint8)}, constants, tmp_path)
    (ours,), _ = both.outputs()
    exact = (byte - 117) * 0.02 * weight * 3072.0 * constants["scales"] + constants["bias"]
    np.testing.assert_allclose(ours, np.broadcast_to(exact, ours.shape), rtol=1e-5)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("rows", ROWS, ids=str)
def test_products_by_weights_of_7_bits_are_the_same(
    rows: tuple[int, ...], size: tuple[int, int], tmp_path: Path
) -> None:
    inputs, constants = linear_inputs(rows, *size)
    constants["weight"] = np.clip(constants["weight"], -64, 64)
    both = Both("QuantizedLinear", inputs, constants, tmp_path)
    (ours,), (theirs,) = both.outputs()
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-4)


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


def test_no_rows_are_no_error(tmp_path: Path) -> None:
    both = Both("QuantizedLinear", *linear_inputs((0, 4), 32, 48), tmp_path)
    (ours,), _ = both.outputs()
    assert ours.shape == (0, 4, 48)


def test_an_input_of_another_width_is_an_error(tmp_path: Path) -> None:
    both = Both("QuantizedLinear", *linear_inputs((1, 4), 32, 48), tmp_path)
    with pytest.raises(Exception, match=r"expected an input \[.., K\] for a weight \[K, N\]"):
        both.outputs(x=np.zeros((1, 4, 36), dtype=np.uint8))


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


def test_what_no_byte_reaches_is_the_last_byte(tmp_path: Path) -> None:
    inputs, constants = linear_inputs((1, 1), 4, 3)
    constants["bias"] = np.array([1e30, np.inf, -1e30], dtype=np.float32)
    output = {"y_scale": np.float32(1e-3), "y_zero_point": np.uint8(6)}
    both = Both("QuantizedLinearGelu", inputs, constants | output, tmp_path)
    assert [each.tolist() for each in both.outputs()[0]] == [[[[255, 255, 6]]]]


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


@pytest.mark.parametrize("size", [(1, 1), (5, 32), (64, 33), (387, 100), (96, 1551), (1100, 300)], ids=str)
@pytest.mark.parametrize("rows", ROWS, ids=str)
@pytest.mark.parametrize("name", ["Linear", "LinearGelu"])
def test_products_of_floats_are_the_same(
    name: str, rows: tuple[int, ...], size: tuple[int, int], tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(*rows, size[0])).astype(np.float32)
    weight = rng.normal(scale=size[0] ** -0.5, size=size).astype(np.float32)
    both = Both(name, {"x": x}, {"weight": weight, "bias": rng.normal(size=size[1]).astype(np.float32)}, tmp_path)
    (ours,), (theirs,) = both.outputs()
    assert ours.shape == (*rows, size[1])
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)  # they add up in another order


def test_gelu_of_floats_is_exact_within_a_millionth(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    x = np.linspace(-12, 12, 200_001, dtype=np.float32)
    x[:5] = -np.inf, -1e30, np.inf, 1e30, np.nan
    both = Both("LinearGelu", {"x": np.zeros((1, 1, 1), dtype=np.float32)},
                {"weight": np.zeros((1, len(x)), dtype=np.float32), "bias": x}, tmp_path)  # fmt: skip
    found = both.outputs()[0][0][0, 0]
    np.testing.assert_allclose(found[:2], 0, atol=1e-6)
    np.testing.assert_array_equal(found[2:4], x[2:4])
    assert np.isnan(found[4])
    exact = torch.nn.functional.gelu(torch.from_numpy(x[5:]).double()).numpy()
    np.testing.assert_allclose(found[5:], exact, rtol=1e-7, atol=1e-6)


def test_a_weight_that_was_packed_gives_its_memory_back(tmp_path: Path) -> None:
    """And is still what it was, for a session that packs it again."""
    weight = np.random.default_rng(0).normal(size=(1024, 1024)).astype(np.float32)
    inputs, constants = {"x": np.eye(1024, dtype=np.float32)[None]}, {"weight": weight, "bias": weight[0]}
    for _ in range(2):
        both = Both("Linear", inputs, constants, tmp_path)
        (ours,), (theirs,) = both.outputs()
        np.testing.assert_array_equal(ours, theirs)
        held, is_weights = [], False
        for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
            if "-" in line.split()[0]:
                is_weights = line.endswith("call.onnx.data")
            elif is_weights and line.startswith("Rss:"):
                held.append(int(line.split()[1]))
        assert held  # kB
        assert max(held) < 100


def test_tensors_of_two_shapes_are_an_error(tmp_path: Path) -> None:
    ones = np.ones(32, dtype=np.float32)
    constants: dict[str, Array] = dict.fromkeys(("gamma", "beta", "smoothing"), ones)
    constants |= {"scale": np.asarray(np.float32(0.1)), "zero_point": np.asarray(np.uint8(0))}
    x = np.ones((2, 3, 32), dtype=np.float32)
    both = Both("AddNormQuantize", {"x": x, "residual": x}, constants, tmp_path, epsilon=1e-12)
    with pytest.raises(Exception, match="of one shape"):
        both.outputs(residual=x.reshape(3, 2, 32))


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


def test_processors_have_the_kernels_of_their_library() -> None:
    """The library itself asks the processor; here /proc/cpuinfo says what that should find."""
    library, expected = kernel_library(), set(FUNCTIONS)
    assert library is not None
    if "amx_int8" in cpu_flags() and library.name == "kernels-avx512.so":
        expected -= {"QuantizedLinear", "QuantizedLinearGelu"}
    assert set(kernel_names()) == expected


def test_every_kernel_has_a_function() -> None:
    assert set(kernel_names()) <= set(FUNCTIONS)
