"""Every peer that a bundle can be compared with."""

from collections.abc import Sequence
from dataclasses import dataclass

from bert_bench.engines import (
    ctranslate2,
    fastembed,
    onnxruntime_plain,
    onnxruntime_tools,
    openvino,
    optimum,
    pytorch,
    sentence_transformers,
    transformers_pipeline,
)
from bert_bench.engines.engine_spec import Kind, PeerSpec
from bert_runtime.errors import InputError

__all__ = ["PEERS", "Peer", "chosen_peers"]


@dataclass(frozen=True)
class Peer:
    """An engine of the registry: its class, and which member of that class's family."""

    spec: type[PeerSpec]
    kind: Kind

    @property
    def environment(self) -> str | None:
        """The requirements file it runs in, by name."""
        return self.spec.environment

    def does(self, task: str) -> bool:
        """Whether it can do the task."""
        return self.spec.tasks is None or task in self.spec.tasks


_FAMILIES: tuple[tuple[type[PeerSpec], Sequence[Kind]], ...] = (
    (pytorch.PyTorchSpec, pytorch.KINDS),
    (onnxruntime_plain.PlainSpec, onnxruntime_plain.KINDS),
    (optimum.OptimumSpec, optimum.KINDS),
    (onnxruntime_tools.OnnxRuntimeToolsSpec, onnxruntime_tools.KINDS),
    (openvino.OpenVINOSpec, openvino.KINDS),
    (ctranslate2.CTranslate2Spec, ctranslate2.KINDS),
    (transformers_pipeline.PipelineSpec, transformers_pipeline.KINDS),
    (sentence_transformers.SentenceTransformersSpec, sentence_transformers.KINDS),
    (fastembed.FastEmbedSpec, fastembed.KINDS),
)

PEERS = {kind.name: Peer(spec, kind) for spec, kinds in _FAMILIES for kind in kinds}
"""By name, in the order in which reports list them."""


def chosen_peers(names: Sequence[str] | None, task: str) -> list[Peer]:
    """The peers of those names, or all that do the task; raises `InputError` for a name that there is not."""
    if names is None:
        return [peer for peer in PEERS.values() if peer.does(task)]
    unknown = [name for name in names if name not in PEERS]
    if unknown:
        raise InputError(f"unknown engine {', '.join(unknown)}; expected some of {', '.join(PEERS)}")
    return [PEERS[name] for name in names]
