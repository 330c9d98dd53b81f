"""Checkpoints made to break their reader: every kind of JSON value at every key, and files that are not weights."""

import json
import pickle
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

VALUES: dict[str, Any] = {
    "null": None,
    "true": True,
    "negative": -1,
    "zero": 0,
    "a billion": 10**9,
    "ten million": 10**7,
    "400 digits": 10**399,
    "fraction": 0.5,
    "NaN": float("nan"),
    "infinity": float("inf"),
    "number as text": "32",
    "empty text": "",
    "NUL": "a\0b",
    "surrogate": "\ud800",
    "5,000 characters": "x" * 5000,
    "parent folder": "..",
    "outside path": "../../etc/passwd",
    "empty list": [],
    "list of numbers": [1],
    "list of null": [None],
    "list of lists": [[]],
    "empty object": {},
    "object": {"a": 1},
    "object of lists": {"0": [], "1": {}},
}
"""By name, values that no key expects, or not at every key."""

CONFIG_KEYS = (
    *("model_type", "architectures", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
    *("intermediate_size", "max_position_embeddings", "type_vocab_size", "hidden_act", "layer_norm_eps"),
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout", "initializer_range", "pad_token_id"),
    *("position_embedding_type", "is_decoder", "id2label", "label2id", "problem_type", "task_specific_params"),
    *("tie_word_embeddings", "tokenizer_class", "embedding_size", "num_hidden_groups", "torch_dtype"),
)
TOKENIZER_KEYS = (
    *("do_lower_case", "strip_accents", "tokenize_chinese_chars", "model_max_length", "truncation_side"),
    *("tokenizer_class", "cls_token", "mask_token", "unk_token", "added_tokens_decoder", "additional_special_tokens"),
    *("extra_special_tokens", "padding_side"),
)

DEEP_JSON = "[" * 100_000
"""Nested too deeply for a recursive parser."""

Edit = Callable[[Path], object]
"""Changes a copy of a checkpoint."""


def set_key(path: Path, key: str, value: Any) -> None:
    """Set a key of a JSON file, which need not exist; `key` may be `outer.inner`."""
    values = json.loads(path.read_text()) if path.is_file() else {}
    outer, _, inner = key.partition(".")
    if inner:
        found = values.get(outer)
        values[outer] = {**(found if isinstance(found, dict) else {}), inner: value}
    else:
        values[outer] = value
    path.write_text(json.dumps(values))


def _key_edits(file: str, keys: tuple[str, ...], prepare: Edit = lambda folder: None) -> Iterator[tuple[str, Edit]]:
    for key in keys:
        for name, value in VALUES.items():

            def edit(folder: Path, key: str = key, value: Any = value) -> None:
                prepare(folder)
                set_key(folder / file, key, value)

            yield f"{file}: {key} is {name}", edit


def _json_files(names: tuple[str, ...]) -> Iterator[tuple[str, Edit]]:
    """A JSON file whose whole contents are hostile."""
    contents = {name: json.dumps(value).encode() for name, value in VALUES.items()}
    contents |= {
        "deeply nested": DEEP_JSON.encode(),
        "nested objects": b'{"a":' * 50_000,
        "5,000 digits": b'{"hidden_size": ' + b"9" * 5000 + b"}",
        "not UTF-8": b'{"a": "\xff"}',
        "UTF-16": '{"a": 1}'.encode("utf-16"),
        "empty": b"",
        "NUL bytes": b"\0" * 100,
    }
    for file in names:
        for name, data in contents.items():
            yield f"{file}: {name}", lambda folder, file=file, data=data: (folder / file).write_bytes(data)
        yield f"{file}: a folder", lambda folder, file=file: _replace_by_folder(folder / file)


def _replace_by_folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def _without_tokenizer_json(folder: Path) -> None:
    (folder / "tokenizer.json").unlink(missing_ok=True)
    if not (folder / "vocab.txt").is_file():
        (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nhello\n")


def _index(weight_map: Any, suffix: str = "safetensors") -> Edit:
    def edit(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "part.safetensors")
        name = "model.safetensors.index.json" if suffix == "safetensors" else "pytorch_model.bin.index.json"
        (folder / name).write_text(json.dumps({"weight_map": weight_map}))

    return edit


def _indexes() -> Iterator[tuple[str, Edit]]:
    for name, value in VALUES.items():
        yield f"weight_map is {name}", _index(value)
        yield f"a shard is {name}", _index({"a": value})
        yield f"a pickled shard is {name}", _index({"a": value}, "bin")
    yield "two kinds of shards", _index({"a": "part.safetensors", "b": 3})
    yield "missing shard", _index({"a": "part.safetensors", "b": "absent.safetensors"})
    yield "shard that is no weights", _index({"a": "config.json"})
    yield "absolute shard", _index({"a": "/etc/passwd"})


def _header(header: Any, data: bytes = b"", length: int | None = None) -> Edit:
    """Replace the weights by a safetensors file with this header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    size = len(text) if length is None else length
    return lambda folder: (folder / "model.safetensors").write_bytes(struct.pack("<Q", size) + text + data)


def _tensor(shape: Any, dtype: Any = "F32", offsets: Any = (0, 4)) -> dict[str, Any]:
    return {"bert.embeddings.LayerNorm.weight": {"dtype": dtype, "shape": shape, "data_offsets": list(offsets)}}


def _safetensors() -> Iterator[tuple[str, Edit]]:
    data = bytes(4)
    yield "header beyond the file", _header({}, length=2**63)
    yield "header of 2^40 bytes", _header({}, length=2**40)
    yield "header is deeply nested", _header(DEEP_JSON.encode())
    yield "shape larger than the data", _header(_tensor([10**9, 10**9]), data)
    yield "negative shape", _header(_tensor([-1]), data)
    yield "shape of text", _header(_tensor("x"), data)
    yield "shape that overflows", _header(_tensor([2**32, 2**32]), data)
    yield "offsets beyond the file", _header(_tensor([10], offsets=(0, 40)), data)
    yield "offsets backwards", _header(_tensor([1], offsets=(4, 0)), data)
    yield "unknown dtype", _header(_tensor([1], "F7"), data)
    yield "integers", _header(_tensor([1], "I32"), data)
    yield "a list as header", _header([1, 2], data)
    yield "empty weights", lambda folder: (folder / "model.safetensors").write_bytes(b"")


class _Call:
    """Calls a function when it is unpickled."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def _pickle(value: Any) -> Edit:
    def edit(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        torch.save(value() if callable(value) else value, folder / "pytorch_model.bin")

    return edit


def _raw_pickle(data: bytes) -> Edit:
    def edit(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        (folder / "pytorch_model.bin").write_bytes(data)

    return edit


def _zip(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with zipfile.ZipFile(folder / "pytorch_model.bin", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\0" * 1_000_000)


def _pickles() -> Iterator[tuple[str, Edit]]:
    for name, value in VALUES.items():
        yield f"pickle of {name}", _pickle(value)
        yield f"pickle of a dict of {name}", _pickle({"bert.embeddings.LayerNorm.weight": value})
    yield "pickle of numbered tensors", _pickle({1: torch.zeros(1)})
    yield "pickle of a list of tensors", _pickle([torch.zeros(1)])
    yield "pickle of a tensor", _pickle(torch.zeros(3))
    yield "pickle that calls a command", _pickle({"a": _Call(print, "called")})
    yield "sparse tensor", _pickle({"classifier.bias": torch.zeros(3).to_sparse()})
    yield "complex tensor", _pickle({"classifier.bias": torch.zeros(3, dtype=torch.complex64)})
    yield "meta tensor", _pickle({"classifier.bias": torch.zeros(3, device="meta")})
    yield "empty pickle", _raw_pickle(b"")
    yield "protocol 0", _raw_pickle(pickle.dumps({"a": 1}, protocol=0))
    yield "pickle that recurses", _raw_pickle(b"\x80\x02" + b"(" * 100_000)
    yield "pickle of garbage", _raw_pickle(bytes(range(256)) * 10)
    yield "memo that is not there", _raw_pickle(b"\x80\x02h\x05.")
    yield "stack underflow", _raw_pickle(b"\x80\x02R.")
    yield "zip without a model", _zip


def hostile_edits() -> Iterator[tuple[str, Edit]]:
    """Names and edits of a classification checkpoint."""
    yield from _key_edits("config.json", CONFIG_KEYS)
    yield from _key_edits("config.json", ("id2label.0", "task_specific_params.text-classification"))
    yield from _key_edits("tokenizer_config.json", TOKENIZER_KEYS)
    yield from _key_edits("tokenizer_config.json", TOKENIZER_KEYS, _without_tokenizer_json)
    yield from _key_edits("special_tokens_map.json", ("cls_token", "cls_token.content"), _without_tokenizer_json)
    yield from _key_edits("added_tokens.json", ("word",), _without_tokenizer_json)
    yield from _key_edits("tokenizer.json", ("model", "model.vocab", "normalizer", "added_tokens", "truncation"))
    yield from _key_edits("tokenizer.json", ("pre_tokenizer", "post_processor", "padding", "version", "model.type"))
    yield from _json_files(("config.json", "tokenizer.json", "tokenizer_config.json", "modules.json"))
    yield from _json_files(("model.safetensors.index.json", "sentence_bert_config.json", "special_tokens_map.json"))
    yield from _indexes()
    yield from _safetensors()
    yield from _pickles()


def hostile_pooling_edits() -> Iterator[tuple[str, Edit]]:
    """Names and edits of a sentence-transformers folder with a pooling."""
    keys = ("pooling_mode", "pooling_mode_mean_tokens", "pooling_mode_cls_token", "word_embedding_dimension")
    yield from _key_edits("1_Pooling/config.json", keys)
    yield from _key_edits("2_Dense/config.json", ("out_features", "in_features", "activation_function", "bias"), _dense)
    yield from _key_edits("sentence_bert_config.json", ("max_seq_length", "do_lower_case"))
    yield from _key_edits("config.json", ("task_specific_params", "task_specific_params.sentence-embedding"))
    for name, value in VALUES.items():
        yield f"modules.json: {name}", lambda folder, value=value: _modules(folder, value)
        for key in ("path", "type"):

            def edit(folder: Path, key: str = key, value: Any = value) -> None:
                modules = json.loads((folder / "modules.json").read_text())
                _modules(folder, [modules[0], {**modules[1], key: value}, *modules[2:]])

            yield f"modules.json: {key} of the pooling is {name}", edit
    dimensions = {"sentence-embedding": {"dimensions": "8"}}
    yield "dimensions as text", lambda folder: set_key(folder / "config.json", "task_specific_params", dimensions)
    yield "the same module 10,000 times", _repeat_dense


def _modules(folder: Path, value: Any) -> None:
    (folder / "modules.json").write_text(json.dumps(value))


def _dense(folder: Path) -> None:
    """Add a dense layer, without weights."""
    modules = json.loads((folder / "modules.json").read_text())
    dense = {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}
    _modules(folder, [*modules[:2], dense, *modules[2:]])
    (folder / "2_Dense").mkdir(exist_ok=True)
    values = {"in_features": 32, "out_features": 8, "bias": True, "activation_function": "torch.nn.Tanh"}
    (folder / "2_Dense" / "config.json").write_text(json.dumps(values))
    (folder / "2_Dense" / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())


def _repeat_dense(folder: Path) -> None:
    _dense(folder)
    modules = json.loads((folder / "modules.json").read_text())
    _modules(folder, [*modules[:2], *[modules[2]] * 10_000])
