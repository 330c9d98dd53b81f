"""The model that is trained and exported: an encoder with a task head."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from bert_models.config import EncoderConfig
from bert_models.crf import LinearChainCrf
from bert_models.first_token import check_prunable
from bert_models.heads import build_head
from bert_models.hidden_states_head import HiddenStatesHead
from bert_models.layers import Encoder
from bert_runtime.tasks import Task, TokenClassification

__all__ = ["TaskModel"]


class TaskModel(nn.Module):
    """An encoder and a task head: token ids in, the task's raw outputs (logits or vectors) out.

    New weights are initialised as in BERT (Devlin et al., arXiv:1810.04805): linear and embedding weights from
    N(0, `config.initializer_range`²), biases 0, LayerNorm weights 1. In pre-norm layers, projections that add to the
    residual stream are divided by √(2 · layers), as in GPT-2 and ModernBERT, so that its variance does not grow.

    Args:
        config: sizes and options of the encoder.
        task: the task that chooses the head (`bert_models.heads.HEADS`) and its labels.

    Raises:
        ConfigError: tokens are pruned that the task reads.
    """

    def __init__(self, config: EncoderConfig, task: Task) -> None:
        super().__init__()
        check_prunable(config, task)
        self.config = config
        self.task = task
        self.encoder = Encoder(config)
        self.head = build_head(self.encoder, config, task)
        self.apply(self.init_weights)
        if config.norm_first:
            self._scale_residuals()

    def init_weights(self, module: nn.Module) -> None:
        """Initialise the parameters of `module` itself, not those of its submodules; for `nn.Module.apply`."""
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=self.config.initializer_range)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    @torch.no_grad()
    def _scale_residuals(self) -> None:
        for name, parameter in self.encoder.named_parameters():
            if name.endswith(("attention.output.weight", "feed_forward.down.weight")):
                parameter.div_((2 * self.config.num_layers) ** 0.5)

    def runtime_task(self) -> Task:
        """Return the task as the runtime needs it: a CRF's trained transitions are copied into it.

        Without a CRF this is `self.task`. Transitions are rounded to 9 significant digits, which float32 survives.
        """
        crf = getattr(self.head, "crf", None)
        if not isinstance(crf, LinearChainCrf) or not isinstance(self.task, TokenClassification):
            return self.task
        scores = crf.transitions.detach().float().cpu().tolist()
        return replace(self.task, transitions=tuple(tuple(float(f"{x:.9g}") for x in row) for row in scores))

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """Run encoder and head.

        Args:
            input_ids: token ids, int64 [B, S].
            attention_mask: 1 at real tokens, 0 at padding, int64 [B, S].
            token_type_ids: segment ids, int64 [B, S]; `None` means segment 0.

        Returns:
            float [B, …] in the shape that `Task.decode` expects, such as logits [B, labels] or [B, S, labels].
        """
        output: Tensor
        if isinstance(self.head, HiddenStatesHead):
            output = self.head(self.encoder.hidden_states(input_ids, attention_mask, token_type_ids))
            return output
        hidden = self.encoder(input_ids, attention_mask, token_type_ids)
        output = self.head(hidden, attention_mask)
        return output
