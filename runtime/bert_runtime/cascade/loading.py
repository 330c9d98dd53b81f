"""Loading of cascades."""

from collections.abc import Callable
from pathlib import Path

from bert_runtime.bundle.manifest import Manifest
from bert_runtime.cascade.manifest import CascadeManifest
from bert_runtime.cascade.model import Cascade, cascade_task
from bert_runtime.errors import BundleError, CascadeBundleError
from bert_runtime.model import Model
from bert_runtime.tasks import Task, TextClassification

__all__ = ["check_tasks", "load_cascade", "read_task"]


def load_cascade(bundle: Path, load_part: Callable[[Path], Model], *, verify: bool) -> Cascade:
    """Load both models of a cascade; see `bert_runtime.load` for errors.

    Args:
        bundle: the cascade's directory.
        load_part: loads a bundle of one model.
        verify: whether to compare the manifests with their hashes.
    """
    manifest = CascadeManifest.read(bundle, verify=verify)
    small, large = (load_part(bundle / part.folder) for part in manifest.parts)
    check_tasks(small.task, large.task)
    return Cascade(small, large, manifest)


def read_task(bundle: Path) -> Task:
    """Return the task of a bundle or of a cascade, whose manifests are all that is read.

    Raises:
        BundleError: the folder is neither, or its manifests are damaged.
    """
    try:
        return Manifest.read(bundle).task
    except CascadeBundleError:
        small, large = (Manifest.read(bundle / part.folder).task for part in CascadeManifest.read(bundle).parts)
    check_tasks(small, large)
    assert isinstance(large, TextClassification), "as was checked"
    return cascade_task(large)


def check_tasks(small: Task, large: Task) -> None:
    """Raise `BundleError` where two models are not classifiers into the same labels."""
    for name, task in (("small", small), ("large", large)):
        problem_type = getattr(task, "problem_type", None)
        if not isinstance(task, TextClassification) or problem_type == "regression":
            kind = f"{task.name} ({problem_type})" if problem_type else task.name
            raise BundleError(
                f"the {name} model: expected text-classification into labels, whose probabilities say how sure the "
                f"model is, found {kind}"
            )
    assert isinstance(small, TextClassification)
    assert isinstance(large, TextClassification)
    if (small.problem_type, small.labels) != (large.problem_type, large.labels):
        different = sorted(set(small.labels) ^ set(large.labels))
        found = f", of which only one has {', '.join(different[:5])}" if different else " in another order"
        raise BundleError(
            f"expected two models of the same labels in the same order, found {small.problem_type} with "
            f"{len(small.labels)} labels and {large.problem_type} with {len(large.labels)}{found}"
        )
