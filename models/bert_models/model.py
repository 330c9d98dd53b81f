"""An encoder with a task's head on top."""

from dataclasses import replace

from torch import Tensor, nn

from bert_models.config import EncoderConfig
from bert_models.crf import LinearChainCrf
from bert_models.heads import build_head
from bert_models.layers import Encoder
from bert_runtime.tasks import Task, TokenClassification

__all__ = ["TaskModel"]


class TaskModel(nn.Module):
    """Token ids in, the task's raw output out: what is trained, and what is exported.

    Weights start as BERT's do: normal with `initializer_range`, biases zero, LayerNorm the identity.
    """

    def __init__(self, config: EncoderConfig, task: Task) -> None:
        super().__init__()
        self.config = config
        self.task = task
        self.encoder = Encoder(config)
        self.head = build_head(self.encoder, config, task)
        self.apply(self.init_weights)

    def init_weights(self, module: nn.Module) -> None:
        """Gives the weights of one module, not of those inside it, their first values."""
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=self.config.initializer_range)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)

    def runtime_task(self) -> Task:
        """The task with what decoding needs of the trained weights: a linear chain's scores."""
        crf = getattr(self.head, "crf", None)
        if not isinstance(crf, LinearChainCrf) or not isinstance(self.task, TokenClassification):
            return self.task
        rows = crf.transitions.detach().float().cpu().tolist()
        return replace(self.task, transitions=tuple(tuple(float(f"{x:.9g}") for x in row) for row in rows))

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """input_ids, attention_mask, token_type_ids: int64 [B, S] → float [B, …], as `Task.decode` reads it."""
        hidden = self.encoder(input_ids, attention_mask, token_type_ids)
        output: Tensor = self.head(hidden, attention_mask)
        return output
