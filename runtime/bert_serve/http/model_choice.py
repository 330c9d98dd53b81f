"""The model that a request means."""

from bert_runtime.tasks import Task
from bert_serve.errors import WrongTaskError
from bert_serve.serving.served_model import Models, ServedModel

__all__ = ["check_task", "choose_model"]


def choose_model(models: Models, name: str | None, task: type[Task]) -> ServedModel:
    """Return the model of a name; without a name, the only one that does a task.

    For formats whose requests name no model.

    Args:
        models: the models of the server.
        name: the name, if the request has one.
        task: the task of the route.

    Raises:
        ModelNotFoundError: none has this name, or there is no name and not exactly one model that does the task.
        ModelNotReadyError: a model is still being loaded.
    """
    if name is None and len(models) > 1:
        fitting = [served for served in models.values() if isinstance(served.model.task, task)]
        if len(fitting) == 1:
            return fitting[0]
    return models.resolve(name)


def check_task(served: ServedModel, task: type[Task]) -> None:
    """Raise `WrongTaskError` unless a model does a task."""
    if not isinstance(served.model.task, task):
        raise WrongTaskError(
            f"model {served.name!r} does {served.model.task.name}; this route needs a model for {task.name}"
        )
