"""config.pbtxt: how Triton calls a model, in the text format of its protocol buffers."""

from dataclasses import dataclass

from bert_runtime.bundle.manifest import PRECISIONS, Manifest
from bert_runtime.errors import InputError
from bert_runtime.tasks import SentenceEmbedding, Task
from bert_runtime.variant_choice import choose_gpu_variant
from bert_serve.pair_inputs import PAIR_INPUTS

__all__ = ["ModelConfig"]


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Settings of a model in config.pbtxt, besides its inputs and outputs, which follow from the task."""

    instances: int = 1
    """Processes that run the model, on each GPU if on any. The cores of the machine are divided among them."""

    gpu: bool = False
    """Whether they run on Triton's GPUs, as many on each; on the CPU otherwise."""

    max_batch_size: int = 64
    """Most texts of a request, and of the requests that Triton joins into one batch. A judgement."""

    max_queue_delay_us: int = 0
    """How long Triton holds a request back for others to join. Without a delay it joins those that wait anyway."""

    max_queue_size: int = 1024
    """Most requests that wait; one that finds more is refused. 0: any number. A judgement."""

    precision: str = "auto"
    """Variant to run, see `bert_runtime.load`."""

    threads: int | None = None
    """Threads of each instance; `None` for an equal share of the cores that Triton may use, as measured by `tune` where
    there is one instance."""

    def __post_init__(self) -> None:
        limits = {"instances": 1, "max_batch_size": 1, "max_queue_delay_us": 0, "max_queue_size": 0, "threads": 1}
        for name, least in limits.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"expected {name} of {least} or more, found {value}")
        if self.precision not in (choices := ("auto", *PRECISIONS)):
            raise InputError(f"expected a precision of {', '.join(choices)}, found {self.precision!r}")

    def check(self, manifest: Manifest) -> None:
        """Raise `BundleError` where a bundle lacks the variant to run."""
        if self.precision != "auto":
            manifest.variant(self.precision, "cuda" if self.gpu else "cpu")
        elif self.gpu:
            choose_gpu_variant(manifest, self.precision)

    def text(self, name: str, task: Task) -> str:
        """Return config.pbtxt for a model of this name, which holds no quotes or backslashes."""
        parameters = {"precision": self.precision}
        if self.threads is not None:
            parameters["threads"] = str(self.threads)
        blocks = [
            "# Written by bert-export triton, which writes it again with --force.",
            f'name: "{name}"',
            'backend: "python"',
            f"max_batch_size: {self.max_batch_size}",
            _list("input", _inputs(task)),
            _list("output", _outputs(task)),
            _list("instance_group", [f"count: {self.instances}, kind: {'KIND_GPU' if self.gpu else 'KIND_CPU'}"]),
            "dynamic_batching {\n"
            f"  max_queue_delay_microseconds: {self.max_queue_delay_us}\n"
            f"  default_queue_policy {{ max_queue_size: {self.max_queue_size} }}\n"
            "}",
            *(
                f'parameters {{ key: "{key}", value: {{ string_value: "{value}" }} }}'
                for key, value in parameters.items()
            ),
        ]
        return "\n".join(blocks) + "\n"


def _inputs(task: Task) -> list[str]:
    first, second = PAIR_INPUTS.get(task.name, ("text", "text_pair"))
    optional = "" if task.name in PAIR_INPUTS else ", optional: true"
    return [
        f'name: "{first.upper()}", data_type: TYPE_STRING, dims: [ 1 ]',
        f'name: "{second.upper()}", data_type: TYPE_STRING, dims: [ 1 ]{optional}',
    ]


def _outputs(task: Task) -> list[str]:
    outputs = ['name: "RESULT", data_type: TYPE_STRING, dims: [ 1 ]']
    if isinstance(task, SentenceEmbedding):
        outputs.append(f'name: "EMBEDDING", data_type: TYPE_FP32, dims: [ {task.dimensions} ]')
    return outputs


def _list(name: str, messages: list[str]) -> str:
    """Return a repeated field of messages."""
    lines = ",\n".join(f"  {{ {message} }}" for message in messages)
    return f"{name} [\n{lines}\n]"
