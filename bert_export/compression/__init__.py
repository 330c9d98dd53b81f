"""Search for a smaller model: by measured latency, distillation, and a gate on rows that the search never saw."""

from bert_export.compression.goal import CompressionSettings, Goal
from bert_export.compression.result import CompressionResult
from bert_export.compression.run import compress

__all__ = ["CompressionResult", "CompressionSettings", "Goal", "compress"]
