"""Settings of a server."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bert_runtime.errors import InputError

__all__ = ["EngineSettings", "ServerSettings"]


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """How bundles are loaded and requests are joined."""

    load_options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of `bert_runtime.load`: precision, device, threads, inter_threads, max_batch_tokens."""

    max_queue_tokens: int = 262_144
    """Tokens that may wait, for each model; a request that finds more is refused. Of one, at most half of it counts."""

    max_queue_ms: float = 2_000.0
    """How long a request may wait before the model starts on it."""

    max_texts: int = 1_024
    """Texts per request."""

    max_tokens_per_text: int | None = None
    """Longest text; a longer one is refused. `None`: what exceeds the model's maximum is truncated."""

    def __post_init__(self) -> None:
        for name in ("max_queue_tokens", "max_queue_ms", "max_texts", "max_tokens_per_text"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise InputError(f"{name} must be positive, found {value}")


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Bundles, limits and access of a server."""

    bundles: Mapping[str, Path]
    """Bundles by the name that clients use."""

    engine: EngineSettings = field(default_factory=EngineSettings)

    max_body_bytes: int = 10_000_000
    """Largest body of a request."""

    api_keys: tuple[str, ...] = ()
    """Keys, of which a request must carry one as `Authorization: Bearer KEY`; empty: none is needed."""

    cors_origins: tuple[str, ...] = ()
    """Origins whose pages may call the server from a browser; empty: only its own."""

    reload_s: float | None = 1.0
    """Seconds between looks for replaced bundles; `None`: they stay as they were loaded."""

    page: bool = True
    """Whether there is a page to try the models on at `/`."""

    log_texts: bool = False
    """Whether the log holds the bodies of requests."""

    def __post_init__(self) -> None:
        if not self.bundles:
            raise InputError("expected at least one bundle to serve")
        if self.max_body_bytes < 1:
            raise InputError(f"max_body_bytes must be positive, found {self.max_body_bytes}")
        if any(not key.isascii() or not key.strip() for key in self.api_keys):
            raise InputError("API keys must be ASCII and not empty; is BERT_SERVE_API_KEY set to nothing?")
