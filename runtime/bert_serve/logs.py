"""Logs as lines of JSON."""

import json
import logging
import sys
from datetime import UTC, datetime

__all__ = ["configure_logs"]


class _JSONFormatter(logging.Formatter):
    """A record as one line: time, level, message, the fields of a request, and an exception's traceback."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure_logs(level: str) -> None:
    """Write the logs of the server, of uvicorn and of the runtime to stderr, a JSON object per line.

    Args:
        level: `debug`, `info`, `warning` or `error`.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JSONFormatter())
    for name in ("bert_serve", "bert_runtime", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level.upper())
