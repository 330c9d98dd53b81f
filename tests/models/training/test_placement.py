"""Resolve placements, and what a process group derives from them."""

import pytest

from bert_models import TrainingError
from bert_models.training import Placement
from bert_models.training.distributed.process_group import ProcessGroup


def test_invalid_placements_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        TrainingError, match=r"devices must be at least 1, found 0; nodes .* found -1; strategy must be"
    ):
        Placement(devices=0, nodes=-1, strategy="dp")
    for name in ("MASTER_ADDR", "NODE_RANK"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(
        TrainingError, match=r"^2 nodes: MASTER_ADDR, .*NODE_RANK not set; .* torchrun --nnodes 2 --nproc-"
    ):
        Placement(nodes=2).resolve()
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    assert Placement(devices="auto").resolve() == Placement(devices=4, nodes=1)
    assert Placement().resolve() == Placement(devices=1, nodes=1)
    with pytest.raises(TrainingError, match="expected at most 4 devices, which is how many GPUs torch sees, found 5"):
        Placement(devices=5).resolve()


def test_placement_is_resolved_from_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}.items():
        monkeypatch.setenv(name, value)
    assert Placement().resolve() == Placement(devices="auto").resolve() == Placement(devices=8, nodes=2)
    assert Placement(devices=8, nodes=2, strategy="fsdp").resolve().strategy == "fsdp"
    with pytest.raises(TrainingError, match="started 8 processes on each of 2 nodes, found devices 4 and nodes None"):
        Placement(devices=4).resolve()


def test_trainer_options_by_placement() -> None:
    assert ProcessGroup().trainer_options() == {
        "accelerator": ProcessGroup().describe(1, 1)["accelerator"],
        "devices": 1,
    }
    ddp = ProcessGroup(devices=8, nodes=2).trainer_options()
    assert (ddp["devices"], ddp["num_nodes"], ddp["strategy"]) == (8, 2, "ddp")
    assert not ddp["use_distributed_sampler"]
    fsdp = ProcessGroup(devices=8, nodes=2, strategy="fsdp").trainer_options()
    assert type(fsdp["strategy"]).__name__ == "ModelParallelStrategy"
    assert ProcessGroup(devices=1, strategy="fsdp").describe(4, 2)["strategy"] is None
    assert ProcessGroup(devices=8, nodes=2).describe(4, 2)["global_batch"] == 128


def test_shard_indices_cover_the_range_evenly() -> None:
    for count in (1, 2, 5, 6):
        shares = [ProcessGroup(devices=3, rank=rank).shard_indices(count) for rank in range(3)]
        assert {len(share) for share in shares} == {-(-count // 3)}
        assert {number for share in shares for number in share} == set(range(count))
    assert [ProcessGroup(devices=3).num_threads(cores) for cores in (1, 3, 8)] == [1, 1, 2]
