"""The files of docs/deploy agree with the server, with each other, and with what containers should be."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Route

from bert_export.cli.serve import serve
from bert_serve.http.app import create_app
from bert_serve.settings import ServerSettings

from .deploy_files import (
    COMPOSE,
    DEPLOY,
    ROOT,
    by_kind,
    containers,
    dockerfile_stages,
    environment_names,
    read_yaml,
)

DRAIN_S = 30.0
"""Default of --drain-s."""


def default(name: str) -> Any:
    return next(option.default for option in serve.params if option.name == name)


@pytest.fixture(scope="module")
def paths(classifier_bundle: Path) -> set[str]:
    """Paths that the server answers."""
    app = create_app(ServerSettings(bundles={"toy": classifier_bundle}))
    return {route.path for route in app.routes if isinstance(route, Route)} | set(app.openapi()["paths"])


def test_variables_are_options_of_serve() -> None:
    prefix = serve.context_settings["auto_envvar_prefix"]
    options = {option.envvar or f"{prefix}_{(option.name or '').upper()}" for option in serve.params}
    assert {"BERT_SERVE_HOST", "BERT_SERVE_PORT", "BERT_SERVE_API_KEY"} <= environment_names() <= options


def test_options_in_comments_are_options_of_serve() -> None:
    flags = {flag for option in serve.params for flag in option.opts}
    assert {"--drain-s"} <= flags
    assert default("drain_s") == DRAIN_S


@pytest.mark.parametrize("kind", ["Deployment", "InferenceService"])
def test_arguments_name_a_bundle_below_a_mount(kind: str) -> None:
    (argument,) = containers()[kind]["args"]
    name, _, bundle = argument.partition("=")
    assert name == "minilm"
    assert bundle.startswith({"Deployment": "/bundles/", "InferenceService": "/mnt/models"}[kind])


@pytest.mark.parametrize("kind", ["Deployment", "InferenceService"])
def test_probes_ask_paths_that_the_server_has(kind: str, paths: set[str]) -> None:
    container = containers()[kind]
    probes = [value["httpGet"] for key, value in container.items() if key.endswith("Probe")]
    assert len(probes) >= 2
    assert {probe["path"] for probe in probes} <= paths
    assert container["livenessProbe"]["httpGet"]["path"] != container["readinessProbe"]["httpGet"]["path"]
    ports = {port.get("name"): port["containerPort"] for port in container["ports"]}
    assert {ports.get(probe["port"], probe["port"]) for probe in probes} == {8080}


def test_the_health_check_of_the_image_asks_a_path_that_the_server_has(paths: set[str]) -> None:
    (check,) = [text for name, text in dockerfile_stages()[-1] if name == "HEALTHCHECK"]
    assert "'http://127.0.0.1:' + os.environ['BERT_SERVE_PORT'] + '/health'" in check
    assert "/health" in paths


def test_pods_end_after_the_server_has_drained() -> None:
    pod = by_kind()["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    drain_s = float(next(item["value"] for item in container["env"] if item["name"] == "BERT_SERVE_DRAIN_S"))
    assert pod["terminationGracePeriodSeconds"] > container["lifecycle"]["preStop"]["sleep"]["seconds"] + drain_s
    assert float(read_yaml(COMPOSE)["services"]["bert-export"]["stop_grace_period"].rstrip("s")) > DRAIN_S


def test_manifests_select_the_pods_of_the_deployment() -> None:
    manifests = by_kind()
    assert manifests.keys() == {"Deployment", "HorizontalPodAutoscaler", "PodDisruptionBudget", "Service"}
    deployment = manifests["Deployment"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == labels
    assert manifests["Service"]["spec"]["selector"] == labels
    assert manifests["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    target = manifests["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", deployment["metadata"]["name"])
    port_names = {port["name"] for port in containers()["Deployment"]["ports"]}
    assert {port["targetPort"] for port in manifests["Service"]["spec"]["ports"]} <= port_names


@pytest.mark.parametrize("kind", ["Deployment", "InferenceService"])
def test_containers_have_no_rights_and_whole_cores(kind: str) -> None:
    container = containers()[kind]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"]["limits"] == container["resources"]["requests"]
    assert container["resources"]["limits"]["cpu"].isdigit()


def test_compose_mounts_read_only_and_drops_rights() -> None:
    service = read_yaml(COMPOSE)["services"]["bert-export"]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert all(volume.endswith(":ro") for volume in service["volumes"])
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert (COMPOSE.parent / service["build"]["context"]).resolve() == ROOT
    assert (ROOT / service["build"]["dockerfile"]).is_file()


def test_everybody_runs_as_the_same_user() -> None:
    stage = dict(dockerfile_stages()[-1])
    user, group = map(int, stage["USER"].split(":"))
    assert user > 0
    for pod in (by_kind()["Deployment"]["spec"]["template"]["spec"], _predictor()):
        context = pod["securityContext"]
        assert (context["runAsNonRoot"], context["runAsUser"], context["runAsGroup"]) == (True, user, group)


def test_the_final_stage_installs_nothing() -> None:
    *_, final = dockerfile_stages()
    assert len(dockerfile_stages()) == 2
    assert {"RUN", "ADD"}.isdisjoint({name for name, _ in final})
    assert [text for name, text in final if name == "COPY"] == ["--from=build /opt/bert-export /opt/bert-export"]
    assert dict(final)["ENTRYPOINT"] == '["bert-export", "serve"]'


def test_files_name_this_release() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    images = {container["image"] for container in containers().values()}
    images.add(read_yaml(COMPOSE)["services"]["bert-export"]["image"])
    assert images == {f"bert-export:{version}"}
    (run,) = [text for name, text in dockerfile_stages()[0] if name == "RUN"]
    assert run.count(f"=={version}") == 2


def test_the_build_reads_files_that_exist() -> None:
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    allowed = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    copied = {text.split()[0] for name, text in dockerfile_stages()[0] if name == "COPY"}
    assert copied == allowed == {".ci/constraints.txt", "dist/*.whl"}
    assert (ROOT / ".ci/constraints.txt").is_file()


def _predictor() -> dict[str, Any]:
    predictor: dict[str, Any] = read_yaml(DEPLOY / "kserve/inference-service.yaml")["spec"]["predictor"]
    return predictor
