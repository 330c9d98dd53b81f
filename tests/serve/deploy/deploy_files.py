"""The files of docs/deploy, parsed."""

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "docs/deploy"
DOCKERFILE = DEPLOY / "Dockerfile"
COMPOSE = DEPLOY / "compose.yaml"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
INFERENCE_SERVICE = DEPLOY / "kserve/inference-service.yaml"


def read_yaml(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return values


def by_kind() -> dict[str, dict[str, Any]]:
    """Return the Kubernetes manifests by kind."""
    return {manifest["kind"]: manifest for manifest in map(read_yaml, MANIFESTS)}


def containers() -> dict[str, dict[str, Any]]:
    """Return the server's container in the Deployment and in the InferenceService, by kind."""
    pods = {
        "Deployment": by_kind()["Deployment"]["spec"]["template"]["spec"],
        "InferenceService": read_yaml(INFERENCE_SERVICE)["spec"]["predictor"],
    }
    return {kind: pod["containers"][0] for kind, pod in pods.items()}


def dockerfile_stages() -> list[list[tuple[str, str]]]:
    """Return the instructions of each stage of the Dockerfile as pairs of name and text."""
    text = "".join(line for line in DOCKERFILE.read_text(encoding="utf-8").splitlines(True) if line[0] != "#")
    instructions = [
        (match[1], match[2]) for match in re.finditer(r"^([A-Z]+) (.*)$", text.replace("\\\n", ""), re.MULTILINE)
    ]
    stages: list[list[tuple[str, str]]] = []
    for name, value in instructions:
        if name == "FROM":
            stages.append([])
        if stages:
            stages[-1].append((name, " ".join(value.split())))
    return stages


def environment_names() -> set[str]:
    """Return the names of all variables BERT_SERVE_* that the files set."""
    texts = [path.read_text(encoding="utf-8") for path in (DOCKERFILE, COMPOSE, *MANIFESTS, INFERENCE_SERVICE)]
    return {name for text in texts for name in re.findall(r"\bBERT_SERVE_[A-Z_]+", text)}
