"""Run Lightning without its tips and hardware messages."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["silence_lightning"]


@contextmanager
def silence_lightning() -> Iterator[None]:
    """Silence Lightning's messages about hardware that it did not find, data-loader workers, and products."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"lightning\..*")
            warnings.filterwarnings(
                "ignore", message=".*(does not have many workers|isinstance.treespec|lr_scheduler.step)"
            )
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
