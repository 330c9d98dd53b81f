"""Access to the Hugging Face hub: ids, the optional client, and errors that say what to do.

huggingface_hub's environment variables apply: `HF_HUB_CACHE` (cache folder), `HF_ENDPOINT` (server), `HF_TOKEN`
(login), `HF_HUB_OFFLINE` (cache only). It is imported by the functions alone, since it is an optional dependency.
"""

import re

from bert_runtime.errors import MissingExtraError

__all__ = ["HUB_ID", "explain_hub_error", "hub_error_cause", "require_hub_client", "summarize_hub_error"]

_NAME = r"[A-Za-z0-9_](?:[\w.-]{0,94}[A-Za-z0-9_])?"

HUB_ID = re.compile(rf"(?P<repo>(?![^@]*(?:--|\.\.))(?:{_NAME}/)?{_NAME})(?:@(?P<revision>\S+))?", re.ASCII)
"""A hub id: `name` or `org/name`, and optionally `@` and a branch, tag or commit."""


def require_hub_client(purpose: str) -> None:
    """Raise `MissingExtraError` if huggingface_hub is not installed; `purpose` says what needs it."""
    try:
        import huggingface_hub  # noqa: F401 - check that it is installed
    except ImportError:
        raise MissingExtraError("huggingface_hub", "hub", purpose) from None


def hub_error_cause(problem: BaseException) -> BaseException:
    """Return the error behind one of the client's that names only what it was doing."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    wraps = isinstance(problem, LocalEntryNotFoundError) or type(problem) is RuntimeError
    return problem.__cause__ if wraps and problem.__cause__ is not None else problem


def explain_hub_error(problem: BaseException, repo: str, revision: str | None) -> str | None:
    """Explain why the hub does not give access to a repository, and what to do; `None` for other errors."""
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    hub = constants.ENDPOINT
    if isinstance(problem, RevisionNotFoundError):
        return f"{hub}/{repo} has no revision {revision!r}; name one of its branches, tags or commits after the @"
    if isinstance(problem, GatedRepoError):
        return f"{hub}/{repo} is gated; accept its conditions there, then log in with 'hf auth login' or set HF_TOKEN"
    if isinstance(problem, RepositoryNotFoundError):
        return (
            f"{hub} has no model {repo!r}, or not for you; check the spelling, and if the model is private, "
            "log in with 'hf auth login' or set HF_TOKEN"
        )
    if isinstance(problem, HfHubHTTPError) and problem.response.status_code in (401, 403):
        summary = summarize_hub_error(problem)
        return f"{hub} refuses access to {repo!r} ({summary}); log in with 'hf auth login' or set HF_TOKEN"
    return None


def summarize_hub_error(problem: BaseException) -> str:
    """Format an error on one line; the hub's messages have several."""
    text = " ".join(str(problem).split())
    return f"{type(problem).__name__}: {text:.200}" if text else type(problem).__name__
