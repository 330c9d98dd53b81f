"""Triton's Python backend for a bundle: texts in, decoded results out as JSON.

`bert-export triton` copies this file into a model repository as `model.py`, beside the bundle. Triton starts a process
for each instance of the model, which imports `bert_runtime` from the Python that Triton finds. It joins the requests
that wait into a batch (dynamic batching), and this file joins their texts into one call of the model. A text that
cannot be processed is an error of its own request alone.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import triton_python_backend_utils as pb_utils  # Triton puts it on the path

if TYPE_CHECKING:
    from bert_runtime import InputFailure, Model, Result

__all__ = ["TritonPythonModel"]


class TritonPythonModel:
    """One instance of the model, as Triton calls it."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the bundle and run its self-test; Triton says that the model is ready once this has returned.

        Args:
            args: the model and the instance, in Triton's words; `model_config` is config.pbtxt as JSON.

        Raises:
            TritonModelException: `bert_runtime` is not installed, or the self-test failed.
        """
        config = json.loads(args["model_config"])
        self.input_names = [value["name"] for value in config["input"]]
        self.model = _load_model(args, config)
        _self_test(self.model)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Return the response to each request of a dynamic batch, in order."""
        read = [self._read_inputs(request) for request in requests]
        try:
            joined = [value for inputs in read if isinstance(inputs, list) for value in inputs]
            results = iter(self.model(joined, on_error="return"))
        except Exception as error:
            pb_utils.Logger.log_error(f"{type(error).__name__}: {error}")
            return [_error("the model failed; Triton's log says why", "INTERNAL") for _ in requests]
        return [
            _respond(request, results, len(inputs)) if isinstance(inputs, list) else inputs
            for request, inputs in zip(requests, read, strict=True)
        ]

    def _read_inputs(self, request: Any) -> Any:
        """Return the list of a request's texts or pairs of texts, or an error response."""
        columns = []
        for name in self.input_names:
            tensor = pb_utils.get_input_tensor_by_name(request, name)
            if tensor is None:  # only the second text is optional
                continue
            try:
                columns.append([value.decode("utf-8") for value in tensor.as_numpy().ravel()])
            except UnicodeDecodeError as error:
                return _error(f"{name}: expected UTF-8, found byte {error.object[error.start]:#x} at {error.start}")
        return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))


def _load_model(args: Mapping[str, str], config: Mapping[str, Any]) -> "Model":
    """Load the bundle beside this file as config.pbtxt says."""
    try:
        from bert_runtime import load
        from bert_runtime.machine import available_cores
    except ModuleNotFoundError as error:
        raise pb_utils.TritonModelException(
            f"{error}; install it for the Python that Triton runs: pip install 'bert-export[cpu]'"
        ) from error
    parameters = {key: value["string_value"] for key, value in config.get("parameters", {}).items()}
    # Triton names the GPUs of a group, each of which has so many instances.
    groups = config.get("instance_group", [])
    instances = sum(group.get("count", 1) * max(1, len(group.get("gpus", ()))) for group in groups) or 1
    share = None if instances == 1 else max(1, available_cores() // instances)  # alone, it follows tuning.json
    threads = int(parameters["threads"]) if "threads" in parameters else share
    device = f"cuda:{args['model_instance_device_id']}" if args["model_instance_kind"] == "GPU" else "cpu"
    bundle = Path(args["model_repository"], args["model_version"], "bundle")
    return load(bundle, precision=parameters.get("precision", "auto"), device=device, threads=threads)


def _self_test(model: "Model") -> None:
    """Compare the outputs of the bundle's self-test inputs with the recorded ones; of a cascade, of both models."""
    from bert_runtime.cascade import Cascade
    from bert_runtime.verification import self_test

    for part in (model.small, model.large) if isinstance(model, Cascade) else (model,):
        if part.manifest is not None and part.variant is not None:
            check = self_test(part, part.manifest, part.variant)
            if not check.passed:
                raise pb_utils.TritonModelException(f"{check.name}: {check.detail}")


def _respond(request: Any, results: "Iterator[Result | InputFailure]", count: int) -> Any:
    """Return the response to a request from the next `count` results."""
    from bert_runtime import InputFailure

    own: list[Any] = [next(results) for _ in range(count)]
    for number, result in enumerate(own):
        if isinstance(result, InputFailure):
            return _error(result.error if count == 1 else f"text {number}: {result.error}")
    tensors = []
    if "RESULT" in (requested := request.requested_output_names()):
        texts = [[json.dumps(result.to_dict(), ensure_ascii=False).encode()] for result in own]
        tensors.append(pb_utils.Tensor("RESULT", np.array(texts, dtype=np.object_)))
    if "EMBEDDING" in requested:
        tensors.append(pb_utils.Tensor("EMBEDDING", np.stack([result.vector for result in own])))
    return pb_utils.InferenceResponse(output_tensors=tensors)


def _error(message: str, code: str = "INVALID_ARG") -> Any:
    error = pb_utils.TritonError(message, getattr(pb_utils.TritonError, code))
    return pb_utils.InferenceResponse(error=error)
