"""The client of a request, and waiting for as long as it does."""

import asyncio
from typing import Protocol

from bert_serve.errors import ClientGoneError

__all__ = ["Caller", "wait_for"]

_GONE_CHECK_S = 0.5
"""Seconds between looks whether the client still waits: at twice the capacity, over a hundred requests wait. A
judgement."""


class Caller(Protocol):
    """The part of a request that tells whether its client still waits."""

    async def is_disconnected(self) -> bool:
        """Return whether the client has closed the connection."""


async def wait_for(done: "asyncio.Future[None]", caller: Caller | None) -> None:
    """Wait until `done` has a result; raise `ClientGoneError` once the client has gone."""
    while caller is not None:
        await asyncio.wait((done,), timeout=_GONE_CHECK_S)
        if done.done():
            return
        if await caller.is_disconnected():
            raise ClientGoneError("the client closed the connection")
    await done
