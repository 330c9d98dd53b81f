"""Errors of the export; see `bert_runtime.errors` for the whole tree."""

from bert_runtime.errors import BertError

__all__ = ["ExportError", "FusionError", "OutputExistsError", "ParityError"]


class ExportError(BertError):
    """A checkpoint cannot be exported as asked."""


class FusionError(ExportError):
    """A fusion fired a different number of times than the model's configuration demands."""


class ParityError(ExportError):
    """The exported graph does not compute what the PyTorch model computes."""


class OutputExistsError(ExportError):
    """The output path exists already."""
