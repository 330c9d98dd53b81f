"""The errors that a server answers with, beside those of `bert_runtime.errors`.

    ServeError
    ├── ModelNotFoundError        no model of this name
    ├── WrongTaskError            the model does another task
    ├── RetryLaterError           not now; says when to try again
    │   ├── ModelNotReadyError    the model is still being loaded
    │   ├── ModelBrokenError      the model fails on requests and on its self-test
    │   ├── QueueFullError        too much work is waiting
    │   └── QueueTimeoutError     the request waited longer than it may
    ├── ClientGoneError           nobody waits for the answer any more
    ├── EmptyRequestError         a request without a single text
    ├── TooManyTextsError         more texts than a request may have
    ├── TextTooLongError          more tokens than a text may have
    └── AnswerTooLargeError       more outputs or candidates than a request may have computed

Each has the HTTP status that fits. Messages go to clients: they hold no path of the server.
"""

from typing import ClassVar

from bert_runtime.errors import BertError

__all__ = [
    "AnswerTooLargeError",
    "ClientGoneError",
    "EmptyRequestError",
    "ModelBrokenError",
    "ModelNotFoundError",
    "ModelNotReadyError",
    "QueueFullError",
    "QueueTimeoutError",
    "RetryLaterError",
    "ServeError",
    "TextTooLongError",
    "TooManyTextsError",
    "WrongTaskError",
]


class ServeError(BertError):
    """A request cannot be answered."""

    status: ClassVar[int] = 500
    """HTTP status."""
    reason: ClassVar[str] = "internal"
    """Label of the metric of refused requests."""


class ModelNotFoundError(ServeError):
    """No model of this name is served."""

    status = 404
    reason = "model_not_found"


class WrongTaskError(ServeError):
    """The model exists, but does another task than the route needs."""

    status = 424
    reason = "wrong_task"


class EmptyRequestError(ServeError):
    """A request has no text."""

    status = 400
    reason = "empty_request"


class RetryLaterError(ServeError):
    """A request may succeed later.

    Args:
        message: why it failed now.
        retry_after_s: seconds after which to try again.
    """

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        """Seconds after which to try again."""


class ModelNotReadyError(RetryLaterError):
    """The model is still being loaded."""

    status = 503
    reason = "not_ready"


class ModelBrokenError(RetryLaterError):
    """The model fails on requests and on its self-test."""

    status = 503
    reason = "model_broken"


class QueueFullError(RetryLaterError):
    """Too much work is waiting already."""

    status = 429
    reason = "queue_full"


class QueueTimeoutError(RetryLaterError):
    """The request waited longer than `max_queue_ms`."""

    status = 503
    reason = "queue_timeout"


class ClientGoneError(ServeError):
    """The client closed the connection before its answer was ready."""

    status = 499
    reason = "client_gone"


class TooManyTextsError(ServeError):
    """A request has more texts than `max_texts`."""

    status = 422
    reason = "too_many_texts"


class AnswerTooLargeError(ServeError):
    """A request's raw outputs would take more memory than they may."""

    status = 413
    reason = "answer_too_large"


class TextTooLongError(ServeError):
    """A text has more tokens than it may."""

    status = 413
    reason = "text_too_long"
