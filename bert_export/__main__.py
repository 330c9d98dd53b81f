"""`python -m bert_export`, and the program `bert-export`: the command line."""

import signal

__all__ = ["main"]


def main() -> None:
    """Run the command line.

    While it is imported, Ctrl-C ends the process at once: modules that are interrupted halfway raise errors of their
    own, and nothing has been begun that would have to be cleaned up.
    """
    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if interruptible:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from bert_export.cli import main as command_line

    if interruptible:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    command_line(prog_name="bert-export")


if __name__ == "__main__":
    main()
