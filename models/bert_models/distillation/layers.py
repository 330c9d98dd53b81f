"""Layers in distillation: which ones initialise a student, which ones are compared, and recording what they compute."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from bert_models.compression.layers import keep_layers
from bert_models.distillation.losses import attention_scores
from bert_models.errors import TrainingError
from bert_models.layers import Encoder
from bert_models.model import TaskModel

__all__ = ["LayerTrace", "evenly_spaced_layers", "matched_layers", "student_from_layers"]


def evenly_spaced_layers(num_teacher_layers: int, num_layers: int) -> list[int]:
    """Choose layers of the teacher evenly from the first to the last.

    For 12 and 6 these are 0, 2, 4, 7, 9, 11, the layers that DistilBERT was initialised from (Sanh et al.,
    arXiv:1910.01108).

    Raises:
        TrainingError: `num_layers` is not in 1…`num_teacher_layers`.
    """
    if not 1 <= num_layers <= num_teacher_layers:
        raise TrainingError(
            f"expected a student of 1 to {num_teacher_layers} layers, as many as its teacher has, found {num_layers}"
        )
    if num_layers == 1:
        return [0]
    return [round(layer * (num_teacher_layers - 1) / (num_layers - 1)) for layer in range(num_layers)]


def matched_layers(num_teacher_layers: int, num_layers: int) -> list[int]:
    """Return, for every layer of the student, the teacher's layer at the same relative depth.

    This is TinyBERT's uniform mapping (Jiao et al., arXiv:1909.10351): layer m of S, from 1, is matched with layer
    ⌈m · T / S⌉ of T.
    """
    return [-(-(layer + 1) * num_teacher_layers // num_layers) - 1 for layer in range(num_layers)]


def student_from_layers(teacher: TaskModel, num_layers: int) -> TaskModel:
    """Copy the teacher's embeddings, head and `num_layers` of its layers into a new model, in evaluation mode.

    Raises:
        TrainingError: the teacher has fewer layers.
    """
    return keep_layers(teacher, evenly_spaced_layers(teacher.config.num_layers, num_layers))


class LayerTrace:
    """Records what an encoder's layers compute in a forward pass, by forward hooks. The last pass is kept.

    Args:
        encoder: the encoder to hook into.
        num_heads: its attention heads.
        hidden: record the hidden states after every layer.
        attention: record queries and keys of the last layer.
    """

    def __init__(self, encoder: Encoder, num_heads: int, *, hidden: bool = True, attention: bool = True) -> None:
        self.hidden: list[Tensor] = []
        """Hidden states after every layer, float [B, S, H]."""
        self._projections: dict[str, Any] = {}
        self._num_heads = num_heads
        last: Any = encoder.layers[encoder.order[-1]]
        self._scale: float | None = last.attention.scale
        self._window = encoder.sliding_window if last.is_local else None
        if hidden:
            encoder.embeddings.register_forward_hook(lambda *_: self.hidden.clear())
            for layer in encoder.layers:
                layer.register_forward_hook(lambda module, args, output: self.hidden.append(output))
        if attention:
            last.attention.query.register_forward_hook(self._keep("query"))
            last.attention.key.register_forward_hook(self._keep("key"))
            if encoder.position_bias is not None:
                encoder.position_bias.register_forward_hook(self._keep("position_bias"))
            if last.attention.positions is not None:
                last.attention.positions.register_forward_hook(self._keep("position_bias"))
            rotary = encoder.local_rotary if last.is_local else encoder.rotary
            if rotary is not None:
                rotary.register_forward_hook(self._keep("rotation"))

    def __deepcopy__(self, memo: object) -> "LayerTrace":
        return self  # recorded tensors belong to a step; a model is copied for its weights alone

    def clear(self) -> None:
        """Drop the recorded tensors."""
        self.hidden.clear()
        self._projections.clear()

    def _keep(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            self._projections[name] = output

        return hook

    def attention(self) -> Tensor:
        """Return the attention scores of the last layer before mask and softmax, float [B, A, S, S].

        A position bias, or scores of positions, are included, and the mask that comes with them; queries and keys are
        rotated if the model does it, and keys outside of a local layer's window are masked.
        """
        rotation = self._projections.get("rotation")
        query, key = self._projections["query"], self._projections["key"]
        scores = attention_scores(query, key, self._num_heads, rotation, self._window, self._scale)
        bias = self._projections.get("position_bias")
        return scores if bias is None else scores + bias
