"""A Ray Serve deployment with the HTTP formats of `bert-export serve`.

    serve run bert_serve.ray_serve:app bundle=/models/intents num_cpus=2 min_replicas=1 max_replicas=8

Each replica is an application of `bert_serve.http.app` on cores of its own, so that requests are joined within a
replica as in a server of one process. Ray Serve routes, and adds replicas while requests wait. A replica gets requests
once its bundle is loaded and has passed its self-test.
"""

from pathlib import Path
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field, model_validator

from bert_runtime import MissingExtraError
from bert_runtime.cascade import read_task
from bert_serve.http.app import create_app
from bert_serve.settings import EngineSettings, ServerSettings

__all__ = ["ServeArguments", "app"]


class ServeArguments(BaseModel):
    """Arguments of `app`."""

    model_config = ConfigDict(extra="forbid")

    bundle: Path
    """The bundle's directory, at the same path on all nodes."""
    name: str | None = None
    """Name that clients use; by default that of the directory."""
    precision: str = "auto"
    """See `bert_runtime.load`."""
    num_cpus: int = Field(default=1, ge=1)
    """Cores of a replica: Ray reserves them, and the model runs as many threads."""
    min_replicas: int = Field(default=1, ge=0)
    """Replicas while there are no requests. With 0, the first request waits until one has started."""
    max_replicas: int = Field(default=1, ge=1)
    target_ongoing_requests: float = Field(default=8, gt=0)
    """Requests per replica, waiting ones included, that Ray Serve adds and removes replicas for. A judgement: a replica
    needs several at once to join them."""
    max_ongoing_requests: int = Field(default=128, ge=1)
    """Requests that a replica gets at most; further ones wait in Ray's proxies."""

    @model_validator(mode="after")
    def _check_replicas(self) -> "ServeArguments":
        if self.min_replicas > self.max_replicas:
            raise ValueError(f"expected min_replicas of at most max_replicas, {self.max_replicas}")
        return self

    @property
    def settings(self) -> ServerSettings:
        """The settings of each replica's application."""
        name = self.name or self.bundle.resolve().name
        options = {"precision": self.precision, "threads": self.num_cpus, "inter_threads": self.num_cpus}
        return ServerSettings(bundles={name: self.bundle}, engine=EngineSettings(load_options=options))


def app(args: ServeArguments) -> Any:
    """Return the application for `serve run` and for `serve.run`.

    Args:
        args: the bundle, and how many replicas of how many cores.

    Returns:
        A `ray.serve.Application`.

    Raises:
        BundleError: there is no bundle at that path on this machine.
        MissingExtraError: Ray is not installed.
    """
    try:
        from ray import serve
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise MissingExtraError("ray", "ray", "a Ray Serve deployment") from None
    read_task(args.bundle)
    settings = args.settings

    def build() -> FastAPI:  # on each replica: an application cannot be pickled
        return create_app(settings, wait_for_models=True)  # a replica gets requests once it has started

    deployment: Any = serve.deployment(
        serve.ingress(build)(),
        name="bert-export",
        ray_actor_options={"num_cpus": args.num_cpus},
        max_ongoing_requests=args.max_ongoing_requests,
        autoscaling_config={
            "min_replicas": args.min_replicas,
            "max_replicas": args.max_replicas,
            "target_ongoing_requests": args.target_ongoing_requests,
        },
    )
    return deployment.bind()
