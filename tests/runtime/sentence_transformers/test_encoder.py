"""`SentenceTransformer` on a bundle: arguments, prompts, formats, and what bundles cannot do."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from bert_runtime import InputError, Model, load, quantize_embeddings
from bert_runtime.sentence_transformers import SentenceTransformer

TEXTS = ["where is my card?", "hello", "I lost my money at the bank"]


@pytest.fixture(scope="module")
def model(prompted_bundle: Path) -> SentenceTransformer:
    return SentenceTransformer(str(prompted_bundle), device="cpu", threads=1)


@pytest.fixture(scope="module")
def plain(embedding_bundle: Path) -> Model:
    return load(embedding_bundle, precision="fp32", threads=1)


def test_shapes_are_those_of_sentence_transformers(model: SentenceTransformer, plain: Model) -> None:
    expected = plain.encode([f"card: {text}" for text in TEXTS])
    assert model.encode(TEXTS).tolist() == expected.tolist()
    assert model.encode(sentences=TEXTS).tolist() == expected.tolist()
    assert model.encode(np.array(TEXTS)).tolist() == expected.tolist()
    assert model.encode(pd.Series(TEXTS), batch_size=1, show_progress_bar=False).tolist() == expected.tolist()
    assert model.encode(TEXTS[1]) == pytest.approx(expected[1], abs=1e-5)
    assert model.encode(TEXTS[1]).shape == (32,)
    assert model.encode([]).shape == (0,)


def test_tensors(model: SentenceTransformer) -> None:
    expected = model.encode(TEXTS)
    tensor = model.encode(TEXTS, convert_to_tensor=True)
    assert isinstance(tensor, torch.Tensor)
    assert tensor.tolist() == expected.tolist()
    tensors = model.encode(TEXTS, convert_to_numpy=False)
    assert isinstance(tensors, list)
    assert torch.stack(tensors).tolist() == expected.tolist()


def test_prompts(model: SentenceTransformer, plain: Model, prompted_bundle: Path) -> None:
    def encoded(prompt: str) -> list[list[float]]:
        return plain.encode([prompt + text for text in TEXTS]).tolist()

    assert model.prompts == {"query": "question ", "document": "card: "}
    assert model.encode_query(TEXTS).tolist() == encoded("question ")
    assert model.encode_document(TEXTS).tolist() == encoded("card: ")
    assert model.encode_document(TEXTS, prompt="bank ").tolist() == encoded("bank ")
    assert model.encode(TEXTS, prompt_name="query").tolist() == encoded("question ")
    assert model.encode(TEXTS, "query", "").tolist() == plain.encode(TEXTS).tolist(), "the prompt comes first"
    own = SentenceTransformer(plain, prompts={"passage": "bank "}, default_prompt_name="passage")
    assert own.encode(TEXTS).tolist() == encoded("bank ")
    assert own.encode_query(TEXTS).tolist() == plain.encode(TEXTS).tolist(), "an empty prompt, not the default one"
    with pytest.raises(InputError, match="expected a prompt_name of query, document, found 'passage'"):
        model.encode(TEXTS, prompt_name="passage")
    with pytest.raises(InputError, match="expected a prompt_name of query, document, found 'passage'"):
        SentenceTransformer(prompted_bundle, default_prompt_name="passage")


@pytest.mark.parametrize("bundle", ["embedding_bundle", "prompted_bundle"])
def test_the_prompt_of_the_bundle(bundle: str, plain: Model, request: pytest.FixtureRequest) -> None:
    """It comes before the prompt that the bundle has by default, and after those that a program gives."""
    prompted = load(request.getfixturevalue(bundle), precision="fp32", threads=1).with_options(prompt="bank ")
    model, unprompted = SentenceTransformer(prompted), plain.encode(TEXTS).tolist()
    assert model.encode(TEXTS).tolist() == plain.encode([f"bank {text}" for text in TEXTS]).tolist()
    assert model.encode(TEXTS, prompt="").tolist() == unprompted
    query = prompted.task.prompts.get("query") or "bank "
    assert model.encode_query(TEXTS).tolist() == plain.encode([f"{query}{text}" for text in TEXTS]).tolist()
    named = SentenceTransformer(prompted, prompts={"short": "card "}, default_prompt_name="short")
    assert named.encode(TEXTS).tolist() == plain.encode([f"card {text}" for text in TEXTS]).tolist()


def test_dimensions_are_cut_without_normalization(model: SentenceTransformer) -> None:
    whole = model.encode(TEXTS)
    assert model.encode(TEXTS, truncate_dim=8).tolist() == whole[:, :8].tolist()
    found = model.encode(TEXTS, truncate_dim=8, normalize_embeddings=True)
    assert np.linalg.norm(found, axis=1) == pytest.approx(1, abs=1e-6)
    with model.truncate_embeddings(16):
        assert model.get_embedding_dimension() == model.get_sentence_embedding_dimension() == 16
        assert model.encode(TEXTS).tolist() == whole[:, :16].tolist()
    assert (model.get_embedding_dimension(), model.max_seq_length, model.device) == (32, 64, "cpu")


@pytest.mark.parametrize("precision", ["int8", "uint8", "binary", "ubinary"])
def test_precisions_have_the_ranges_of_the_inputs(precision: Any, model: SentenceTransformer) -> None:
    found = model.encode(TEXTS, precision=precision)
    assert found.tolist() == quantize_embeddings(model.encode(TEXTS), precision).tolist()


@pytest.mark.parametrize("name", ["cosine", "dot", "euclidean", "manhattan"])
def test_similarity(name: Any, plain: Model) -> None:
    model = SentenceTransformer(plain, similarity_fn_name=name)
    vectors = model.encode(TEXTS)
    found = model.similarity(vectors, list(vectors[:2]))
    assert found.shape == (3, 2)
    assert model.similarity(torch.from_numpy(vectors), vectors[0])[:, 0] == pytest.approx(found[:, 0])
    assert model.similarity_pairwise(vectors, vectors) == pytest.approx(np.diag(model.similarity(vectors, vectors)))
    best = 1 if name in ("cosine", "dot") else 0
    assert np.diag(model.similarity(vectors, vectors)) == pytest.approx(best, abs=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"output_value": "token_embeddings"}, "encode: output_value='token_embeddings' is not supported by bundles"),
        ({"pool": {"input": 1}}, "encode: pool={'input': 1} is not supported by bundles"),
        ({"device": ["cpu", "cpu"]}, "encode: device=.* is not supported: this bundle was loaded on cpu; load it on"),
        ({"device": "cuda"}, "encode: device='cuda' is not supported: this bundle was loaded on cpu"),
        ({"truncate_dim": 0}, "expected a truncate_dim of at least 1, found 0"),
        ({"truncate_dim": "8"}, "expected a truncate_dim of at least 1, found '8'"),
        ({"processing_kwargs": {}}, "encode: the argument processing_kwargs is not supported by bundles"),
        ({"batch_size": 0}, "encode: expected a batch_size of at least 1, found 0"),
        ({"precision": "int4"}, r"expected an embedding precision of float32, int8, .*, found 'int4'"),
    ],
)
def test_unsupported_arguments_are_named(arguments: dict[str, Any], message: str, model: SentenceTransformer) -> None:
    with pytest.raises(InputError, match=message):
        model.encode(TEXTS, **arguments)


def test_programs_may_name_the_device_of_the_bundle(model: SentenceTransformer) -> None:
    for device in ("cpu", torch.device("cpu")):
        assert model.encode(TEXTS, device=device).tolist() == model.encode(TEXTS).tolist()


@pytest.mark.parametrize("inputs", [5, None, TEXTS[0].encode(), {"text": TEXTS[0]}, set(TEXTS)])
def test_what_is_no_text_is_refused(inputs: Any, model: SentenceTransformer) -> None:
    with pytest.raises(InputError, match="expected a text"):
        model.encode(inputs)


def test_a_loaded_model_keeps_what_it_was_loaded_with(plain: Model) -> None:
    assert SentenceTransformer(plain, device="cpu").device == "cpu"
    with pytest.raises(InputError, match="the constructor: device='cuda' is not supported: this bundle was loaded on"):
        SentenceTransformer(plain, device="cuda")
    with pytest.raises(InputError, match="a bundle's folder with precision, threads, found a loaded model, which"):
        SentenceTransformer(plain, precision="int8", threads=1)


def test_other_bundles_and_methods_are_named(classifier_bundle: Path, plain: Model) -> None:
    with pytest.raises(InputError, match="needs a bundle for sentence-embedding, found one for text-classification"):
        SentenceTransformer(classifier_bundle)
    with pytest.raises(InputError, match="SentenceTransformer: the argument model_kwargs is not supported by bundles"):
        SentenceTransformer(plain, model_kwargs={})
    with pytest.raises(InputError, match="trust_remote_code=True is not supported by bundles; expected False"):
        SentenceTransformer(plain, trust_remote_code=True)
    with pytest.raises(InputError, match=r"expected a similarity_fn_name of cosine, .*, found 'maxsim'"):
        SentenceTransformer(plain, similarity_fn_name="maxsim")  # type: ignore[arg-type]
    with pytest.raises(AttributeError, match=r"SentenceTransformer\.fit is not supported by bundles"):
        SentenceTransformer(plain).fit  # noqa: B018
