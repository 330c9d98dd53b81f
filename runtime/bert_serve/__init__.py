"""Serve exported bundles: HTTP in the formats that clients speak, bulk work, and adapters for Ray, Spark and Triton.

    from bert_serve import ServerSettings, create_app

    app = create_app(ServerSettings(bundles={"intents": Path("intents-bundle")}))   # a FastAPI application

Torch-free: it uses `bert_runtime` alone. Install it with the extra `serve`; bulk work needs `batch`, Ray `ray`.
"""

from typing import TYPE_CHECKING, Any

from bert_serve.errors import (
    AnswerTooLargeError,
    ClientGoneError,
    EmptyRequestError,
    ModelBrokenError,
    ModelNotFoundError,
    ModelNotReadyError,
    QueueFullError,
    QueueTimeoutError,
    RetryLaterError,
    ServeError,
    TextTooLongError,
    TooManyTextsError,
    WrongTaskError,
)
from bert_serve.settings import EngineSettings, ServerSettings
from bert_serve.tables import batch_function

__all__ = [
    "AnswerTooLargeError",
    "ClientGoneError",
    "EmptyRequestError",
    "EngineSettings",
    "ModelBrokenError",
    "ModelNotFoundError",
    "ModelNotReadyError",
    "QueueFullError",
    "QueueTimeoutError",
    "RetryLaterError",
    "ServeError",
    "ServerSettings",
    "TextTooLongError",
    "TooManyTextsError",
    "WrongTaskError",
    "batch_function",
    "create_app",
]

if TYPE_CHECKING:
    from bert_serve.http.app import create_app
else:

    def __getattr__(name: str) -> Any:
        """Import the application on first use: FastAPI takes 0.3 s, which bulk work does not need."""
        if name != "create_app":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from bert_serve.http.app import create_app

        return create_app
