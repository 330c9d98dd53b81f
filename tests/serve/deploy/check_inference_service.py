"""Check an InferenceService against the types of KServe's Python package, and its parts against Kubernetes' schemas.

python check_inference_service.py FILE

Runs in the environment of `make test-deploy`. The package `kserve` holds the OpenAPI types of its custom resources as
classes; only those are imported, since the package itself needs a server's dependencies.
"""

import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

KUBERNETES = "v1.37.0-local-strict"
SCALARS = {"str": str, "int": int, "bool": bool, "float": (int, float)}


def kserve_models() -> ModuleType:
    """Import `kserve.models` without `kserve` itself."""
    spec = importlib.util.find_spec("kserve")
    assert spec is not None
    bare = ModuleType("kserve")
    bare.__path__ = list(spec.submodule_search_locations or ())
    sys.modules["kserve"] = bare
    return importlib.import_module("kserve.models")


def problems(value: Any, type_name: str, where: str, models: ModuleType) -> Iterator[str]:
    """Yield what is wrong with a value of an OpenAPI type."""
    if match := re.fullmatch(r"list\[(.*)\]", type_name):
        for index, item in enumerate(value):
            yield from problems(item, match[1], f"{where}[{index}]", models)
    elif type_name in SCALARS:
        if not isinstance(value, SCALARS[type_name]):
            yield f"{where}: expected {type_name}, found {value!r}"
    elif (model := getattr(models, type_name, None)) is not None:
        keys = {key: name for name, key in model.attribute_map.items()}
        for key, inner in value.items():
            if key in keys:
                yield from problems(inner, model.openapi_types[keys[key]], f"{where}.{key}", models)
            else:
                yield f"{where}: unknown key {key}"
    elif type_name.startswith("V1"):
        yield from kubernetes_problems(value, type_name.removeprefix("V1"), where)


def kubernetes_problems(value: Any, kind: str, where: str) -> Iterator[str]:
    """Yield what is wrong with a value of a type of Kubernetes itself."""
    schemas = files("kubernetes_validate") / "kubernetes-json-schema" / KUBERNETES
    definitions = Resource.from_contents(json.loads((schemas / "_definitions.json").read_text()))
    group = "io.k8s.apimachinery.pkg.apis.meta.v1" if kind == "ObjectMeta" else "io.k8s.api.core.v1"
    schema = {"$ref": f"https://kubernetes.io/api/_definitions.json#/$defs/{group}.{kind}"}
    for error in Draft202012Validator(schema, registry=definitions @ Registry()).iter_errors(value):
        yield f"{where}.{'.'.join(map(str, error.path))}: {error.message}"


if __name__ == "__main__":
    manifest = yaml.safe_load(Path(sys.argv[1]).read_text(encoding="utf-8"))
    models = kserve_models()
    found = [*problems(manifest, "V1beta1InferenceService", manifest["kind"], models)]
    print("\n".join(found))  # noqa: T201 # read by the test
    sys.exit(1 if found else 0)
