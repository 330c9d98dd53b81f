"""Checkpoints that merge matrices, such as those of queries, keys and values, into one."""

import torch

from bert_models.weights import join_parts, split_parts

KEYS = [f"model.layer.Wqkv.weight[{part}/3]" for part in range(3)]


def test_parts_are_split_and_joined_again() -> None:
    merged = torch.arange(12.0).view(6, 2)
    whole = {"model.layer.Wqkv.weight": merged, "other": torch.ones(1)}
    parts = split_parts(whole, KEYS, "model.")
    assert torch.equal(parts["model.layer.Wqkv.weight[1/3]"], merged[2:4])
    joined = join_parts(parts)
    assert joined.keys() == whole.keys()
    assert all(torch.equal(joined[key], whole[key]) for key in whole)


def test_keys_without_the_prefix_are_split_too() -> None:
    parts = split_parts({"layer.Wqkv.weight": torch.ones(6, 2)}, KEYS, "model.")
    assert sorted(parts) == [f"layer.Wqkv.weight[{part}/3]" for part in range(3)]


def test_tensor_that_has_no_equal_parts_stays_whole() -> None:
    whole = {"model.layer.Wqkv.weight": torch.ones(7, 2)}
    assert split_parts(whole, KEYS, "model.").keys() == whole.keys()
