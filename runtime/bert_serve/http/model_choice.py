"""The model that a request means."""

from bert_runtime.errors import InputError
from bert_runtime.tasks import Task
from bert_serve.errors import WrongTaskError
from bert_serve.serving.served_model import Models, ServedModel

__all__ = ["check_task", "check_truncation_side", "choose_model"]


def choose_model(models: Models, name: str | None, *tasks: type[Task]) -> ServedModel:
    """Return the model of a name; without a name, the only one that does one of the tasks.

    For formats whose requests name no model.

    Args:
        models: the models of the server.
        name: the name, if the request has one.
        *tasks: the tasks of the route; a model of an earlier one is preferred.

    Raises:
        ModelNotFoundError: none has this name, or there is no name and not exactly one model that does a task.
        ModelNotReadyError: a model is still being loaded.
    """
    if name is None and len(models) > 1:
        for task in tasks:
            fitting = [served for served in models.values() if isinstance(served.model.task, task)]
            if len(fitting) == 1:
                return fitting[0]
            if fitting:  # a model of another task is not what is meant
                break
    return models.resolve(name)


def check_task(served: ServedModel, *tasks: type[Task]) -> None:
    """Raise `WrongTaskError` unless a model does one of the tasks."""
    if not isinstance(served.model.task, tasks):
        needed = " or ".join(task.name for task in tasks)
        raise WrongTaskError(
            f"model {served.name!r} does {served.model.task.name}; this route needs a model for {needed}"
        )


def check_truncation_side(served: ServedModel, asked: object) -> None:
    """Raise `InputError` where texts shall be truncated at another side than the tokenizer's; `None` asks for none."""
    side = served.model.tokenizer.truncation_side
    if asked is not None and str(asked).lower() != side:
        raise InputError(
            f"truncation_direction: expected {side}, the only one of this model's tokenizer, found {asked!r:.50}"
        )
