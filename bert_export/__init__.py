"""Export BERT-family PyTorch checkpoints to verified ONNX bundles.

>>> from bert_export import export
>>> manifest = export("checkpoint/", "bundle/")  # doctest: +SKIP

Exporting needs the extra `export` (torch, onnx). Names are imported when they are first used, so that `import
bert_export` and the command line start without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__all__ = ["ExportError", "FusionError", "OutputExistsError", "ParityError", "export"]

if TYPE_CHECKING:
    from bert_export.errors import ExportError, FusionError, OutputExistsError, ParityError
    from bert_export.exporter import export
else:

    def __getattr__(name: str) -> object:
        """Import a public name on first use (PEP 562)."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module("bert_export.exporter" if name == "export" else "bert_export.errors"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted({*globals(), *__all__})
