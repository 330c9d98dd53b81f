"""Artifacts are made once and completely, and again when their inputs change."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from bert_bench import WorkerError
from bert_bench.engines import openvino, transformers_pipeline
from bert_bench.engines.engine_spec import EngineConfig, Forward, PreparedSpec
from bert_bench.engines.openvino import OpenVINOSpec
from bert_bench.engines.transformers_pipeline import PipelineSpec
from bert_bench.workers.artifact_cache import ArtifactCache
from bert_runtime import Manifest
from bert_runtime.bundle.atomic_folders import atomic_replace_dir
from bert_runtime.tasks import TextInput

TEXTS = [TextInput("hello"), TextInput("lost my card")]


@dataclass(frozen=True, kw_only=True)
class ToySpec(PreparedSpec):
    """Writes the number of calibration texts."""

    needs_calibration: ClassVar[bool] = True

    def prepare(self, folder: Path, texts: Sequence[TextInput]) -> None:
        if self.config.settings.get("broken"):
            raise WorkerError("the toy is broken")
        (folder / "texts").write_text(str(len(texts)))

    def open_session(self, manifest: Manifest) -> tuple[Forward, int]:
        raise NotImplementedError


class InProcess:
    """Runs `prepare_artifacts` in this process."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def call(self, method: str, spec: ToySpec, folder: Path, texts: Sequence[TextInput]) -> None:
        assert method == "prepare_artifacts"
        self.made.append(spec.name)
        spec.prepare(folder, texts)


def spec(name: str = "toy", precision: str = "int8", **settings: Any) -> ToySpec:
    config = EngineConfig(name=name, label="a toy", precision=precision, settings=settings)
    return ToySpec(bundle=Path(), threads=1, max_batch_tokens=1, checkpoint=Path(), config=config)


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> InProcess:
    worker = InProcess()
    monkeypatch.setattr(ArtifactCache, "worker", lambda self, environment: nullcontext(worker))
    return worker


@pytest.fixture
def artifact_cache(tmp_path: Path) -> ArtifactCache:
    return ArtifactCache(cache=tmp_path, checkpoint_key="0123456789abcdef0", texts=TEXTS, progress=lambda stage: None)


def test_artifacts_are_made_once(artifact_cache: ArtifactCache, worker: InProcess) -> None:
    first, second = artifact_cache.prepared(spec()), artifact_cache.prepared(spec())
    assert first.folder == second.folder
    assert (first.files / "texts").read_text() == "2"
    assert worker.made == ["toy"]


def test_changed_settings_checkpoint_or_calibration_texts_make_artifacts_again(
    artifact_cache: ArtifactCache, worker: InProcess
) -> None:
    folders = [
        artifact_cache.prepared(spec()).folder,
        artifact_cache.prepared(spec(level="O1")).folder,
        replace(artifact_cache, texts=TEXTS[:1]).prepared(spec()).folder,
        replace(artifact_cache, checkpoint_key="f" * 64).prepared(spec()).folder,
    ]
    assert len(set(folders)) == len(worker.made) == 4


def test_changed_code_of_any_engine_makes_artifacts_again(
    artifact_cache: ArtifactCache, worker: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = artifact_cache.prepared(spec()).folder
    monkeypatch.setattr("bert_bench.workers.artifact_cache._sources_sha256", lambda *packages: f"other {packages}")
    assert artifact_cache.prepared(spec()).folder != first
    assert len(worker.made) == 2


def test_engines_with_the_same_artifacts_share_them() -> None:
    common: dict[str, Any] = {"bundle": Path(), "threads": 1, "max_batch_tokens": 1, "checkpoint": Path()}
    made = {config.name: OpenVINOSpec(config=config, **common).artifact_config.name for config in openvino.CONFIGS}
    assert made == {
        "openvino-fp32": "openvino-fp32",
        "openvino-bf16": "openvino-fp32",
        "openvino-int8": "openvino-int8",
        "openvino-int8-throughput": "openvino-int8",
    }
    pipelines = [PipelineSpec(config=config, **common).artifact_config.name for config in transformers_pipeline.CONFIGS]
    assert pipelines == ["pipeline-pytorch", "optimum-int8"]


def test_calibration_texts_do_not_matter_if_they_are_not_read(artifact_cache: ArtifactCache, worker: InProcess) -> None:
    for texts in (TEXTS, TEXTS[:1]):
        replace(artifact_cache, texts=texts).prepared(spec(precision="fp32"))
    assert worker.made == ["toy"]


def test_failure_leaves_nothing_behind(artifact_cache: ArtifactCache, worker: InProcess, tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match="the toy is broken"):
        artifact_cache.prepared(spec(broken=True))
    assert not [path for path in tmp_path.rglob("*") if "toy" in path.name]


def test_interruption_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), atomic_replace_dir(tmp_path / "target") as building:
        (building / "half").touch()
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_opening_an_unprepared_engine_is_an_error() -> None:
    with pytest.raises(AssertionError, match="toy was opened before it was prepared"):
        _ = spec().files
