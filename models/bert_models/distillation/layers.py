"""Which layers of a teacher a student has, or is compared with, and looking at them as they run."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from bert_models.config import EncoderConfig
from bert_models.distillation.losses import attention_scores
from bert_models.errors import TrainingError
from bert_models.layers import Encoder
from bert_models.model import TaskModel

__all__ = ["LayerTrace", "evenly_spaced_layers", "matched_layers", "student_from_layers"]


def evenly_spaced_layers(of: int, number: int) -> list[int]:
    """`number` of `of` layers, evenly from the first to the last: 12 → 6 gives DistilBERT's 0, 2, 4, 7, 9, 11."""
    if not 1 <= number <= of:
        raise TrainingError(f"expected a student of 1 to {of} layers, as many as its teacher has, found {number}")
    if number == 1:
        return [0]
    return [round(place * (of - 1) / (number - 1)) for place in range(number)]


def matched_layers(teacher: int, student: int) -> list[int]:
    """For each of the student's layers, the teacher's layer at the same share of its depth."""
    return [-(-(place + 1) * teacher // student) - 1 for place in range(student)]


def student_from_layers(teacher: TaskModel, number: int) -> TaskModel:
    """A model with `number` of the teacher's layers, and its embeddings and head; weights are copies."""
    chosen = evenly_spaced_layers(teacher.config.num_layers, number)
    student = TaskModel(_shallower(teacher.config, number), teacher.task)
    encoder, source = student.encoder, teacher.encoder
    encoder.embeddings.load_state_dict(source.embeddings.state_dict())
    for place, layer in enumerate(chosen):
        encoder.layers[encoder.order[place]].load_state_dict(source.layers[source.order[layer]].state_dict())
    student.head.load_state_dict(teacher.head.state_dict())
    return student.eval()


def _shallower(config: EncoderConfig, number: int) -> EncoderConfig:
    """With layers of their own where the teacher's share parameters in several groups, which cannot be thinned out."""
    groups = config.num_layer_groups
    return replace(config, num_layers=number, num_layer_groups=groups if groups in (None, 1) else number)


class LayerTrace:
    """What the layers of an encoder computed in its last forward pass, of what is asked for."""

    def __init__(self, encoder: Encoder, num_heads: int, *, hidden: bool = True, attention: bool = True) -> None:
        self.hidden: list[Tensor] = []
        """After each layer, float [B, S, H]."""
        self._projections: dict[str, Tensor] = {}
        self._num_heads = num_heads
        if hidden:
            encoder.embeddings.register_forward_hook(lambda *_: self.hidden.clear())
            for layer in encoder.layers:
                layer.register_forward_hook(lambda module, given, computed: self.hidden.append(computed))
        if attention:
            last: Any = encoder.layers[encoder.order[-1]]
            last.attention.query.register_forward_hook(self._keep("query"))
            last.attention.key.register_forward_hook(self._keep("key"))

    def __deepcopy__(self, memo: object) -> "LayerTrace":
        return self  # what it holds belongs to a step; a copy of the model is made for its weights

    def clear(self) -> None:
        """Forgets it."""
        self.hidden.clear()
        self._projections.clear()

    def _keep(self, name: str) -> Callable[[nn.Module, Any, Tensor], None]:
        def hook(module: nn.Module, given: Any, computed: Tensor) -> None:
            self._projections[name] = computed

        return hook

    def attention(self) -> Tensor:
        """Scores of the last layer before mask and softmax, float [B, A, S, S]."""
        return attention_scores(self._projections["query"], self._projections["key"], self._num_heads)
