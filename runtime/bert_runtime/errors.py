"""The errors that this project raises on purpose.

    BertError
    ├── BundleError               not a bundle, or a damaged one
    │   ├── CascadeBundleError    a cascade of two models where one model is expected
    │   └── NewerFormatError      a bundle written by a later release
    ├── DataError                 a data file that cannot be read as asked; names file and line
    ├── InputError                a text or argument that cannot be processed
    ├── DeploymentError           this machine or process cannot do what was asked
    │   ├── MissingExtraError     an optional dependency is not installed; names the extra
    │   ├── CudaUnavailableError  CUDA was asked for and is not available; says why
    │   └── ForkedSessionError    a loaded model was used in a forked child
    ├── HubError                  the Hugging Face hub does not answer, refuses, or has something else
    ├── bert_models.errors        ConfigError, CheckpointError, CompressionError, TrainingError
    ├── bert_export.errors        ExportError and its subclasses
    └── bert_bench.errors         BenchError and its subclasses

A message says what was expected, what was found, where, and what to do next.
"""

from bert_runtime.installation import install_command

__all__ = [
    "BertError",
    "BundleError",
    "CascadeBundleError",
    "CudaUnavailableError",
    "DataError",
    "DeploymentError",
    "ForkedSessionError",
    "HubError",
    "InputError",
    "MissingExtraError",
    "NewerFormatError",
]


class BertError(Exception):
    """Base of all errors raised on purpose; the command line prints them without a traceback."""


class BundleError(BertError):
    """A directory is not a bundle, or its contents do not agree with its manifest."""


class CascadeBundleError(BundleError):
    """A bundle is a cascade of two models, and the bundle of one model was expected."""


class NewerFormatError(BundleError):
    """A bundle needs a later release than the one installed."""


class DataError(BertError):
    """A data file cannot be read as asked. The message starts with `file:line` where a line is at fault."""


class InputError(BertError):
    """A text or an argument cannot be processed. The message starts with `input N:` where one of several is at fault.

    Args:
        reason: why.
        index: number of the input at fault, from 0.
    """

    def __init__(self, reason: str, index: int | None = None) -> None:
        super().__init__(reason if index is None else f"input {index}: {reason}")
        self.reason = reason
        """The message without the input's number."""
        self.index = index
        """Number of the input at fault, from 0; `None` where no single input is."""


class DeploymentError(BertError):
    """This machine or process cannot do what was asked."""


class MissingExtraError(DeploymentError):
    """An optional dependency is not installed."""

    def __init__(self, module: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the Python module {module!r}, which is not installed; "
            f"install it with: {install_command(extra)}"
        )
        self.module = module
        """The Python module that cannot be imported."""
        self.extra = extra
        """The extra of bert-export that installs it."""
        self._purpose = purpose

    def __reduce__(self) -> tuple[type["MissingExtraError"], tuple[str, str, str]]:
        return type(self), (self.module, self.extra, self._purpose)  # for processes that it comes from


class CudaUnavailableError(DeploymentError):
    """CUDA was asked for, and this machine or installation does not have it; nothing falls back to the CPU."""


class ForkedSessionError(DeploymentError):
    """A model loaded before a fork was called in the child, where its threads do not exist."""


class HubError(BertError):
    """The Hugging Face hub does not answer, refuses, or has something else under a name."""
