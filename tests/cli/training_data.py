"""Training data with two labels that a toy model can separate, and comparison of checkpoints."""

import random
from pathlib import Path

import torch
from safetensors.torch import load_file

SENTENCES = {
    "lost": ["I lost my {}", "my {} is lost", "where is my {}", "help, the {} is not with me"],
    "money": ["pay the {}", "how do I pay for the {}", "the {} was money", "money for a {} please"],
}

THINGS = ["card", "book", "parcel", "train", "bus", "account", "film", "order", "bank", "sun"]


def rows(things: list[str]) -> list[tuple[str, str]]:
    """Return every sentence about every thing with its label, shuffled."""
    pairs = [(text.format(thing), label) for label, texts in SENTENCES.items() for text in texts for thing in things]
    return random.Random(0).sample(pairs, len(pairs))


def write(path: Path, data: list[tuple[str, str]]) -> Path:
    """Write texts and labels to a CSV file."""
    path.write_text("text,label\n" + "".join(f'"{text}",{label}\n' for text, label in data))
    return path


def equal(one: Path, two: Path) -> bool:
    """Return whether two checkpoints have bitwise equal weights."""
    first, second = (load_file(checkpoint / "model.safetensors") for checkpoint in (one, two))
    return first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)
