"""`bert-export serve`: options, files and mistakes."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from bert_export.cli.serve import serve
from bert_runtime import BundleError, InputError
from bert_serve.settings import ServerSettings


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the command passes to `run_server`, which then ends at once."""
    found: dict[str, Any] = {}

    def run_server(settings: ServerSettings, **options: Any) -> int:
        found.update(options, settings=settings)
        return 0

    monkeypatch.setattr("bert_serve.server.run_server", run_server)
    return found


def run(*arguments: str | Path, **environment: str) -> Result:
    return CliRunner().invoke(serve, list(map(str, arguments)), env=environment)


def test_a_bundle_without_a_name_answers_to_its_folders(
    started: dict[str, Any], embedding_bundle: Path, classifier_bundle: Path
) -> None:
    assert run(embedding_bundle, f"intents={classifier_bundle}").exit_code == 0
    assert started["settings"].bundles == {"embedding": embedding_bundle, "intents": classifier_bundle}
    assert (started["host"], started["port"], started["uds"]) == ("127.0.0.1", 8080, None)


def test_options_come_from_flags_before_the_environment_before_a_file(
    started: dict[str, Any], embedding_bundle: Path, tmp_path: Path
) -> None:
    config = tmp_path / "serve.toml"
    config.write_text('port = 1\nmax-texts = 2\nthreads = 3\napi-key = ["one"]\n', encoding="utf-8")
    result = run(embedding_bundle, "--config", config, "--port", "9", BERT_SERVE_MAX_TEXTS="8", BERT_SERVE_PORT="7")
    assert result.exit_code == 0, result.output
    settings = started["settings"]
    assert started["port"] == 9
    assert settings.engine.max_texts == 8
    assert settings.engine.load_options["threads"] == 3
    assert settings.api_keys == ("one",)


def test_there_is_a_page_unless_it_is_left_out(started: dict[str, Any], embedding_bundle: Path) -> None:
    assert run(embedding_bundle).exit_code == 0
    assert started["settings"].page
    assert run(embedding_bundle, "--no-page").exit_code == 0
    assert not started["settings"].page


def test_the_environment_or_a_file_may_name_the_bundles(
    started: dict[str, Any], embedding_bundle: Path, tmp_path: Path
) -> None:
    assert run(BERT_SERVE_BUNDLES=f"env={embedding_bundle}", BERT_SERVE_API_KEY="a b").exit_code == 0
    assert started["settings"].bundles == {"env": embedding_bundle}
    assert started["settings"].api_keys == ("a", "b")
    config = tmp_path / "serve.toml"
    config.write_text(f'bundles = ["file={embedding_bundle}"]\n', encoding="utf-8")
    assert run("--config", config).exit_code == 0
    assert started["settings"].bundles == {"file": embedding_bundle}


@pytest.mark.parametrize("key", ["", " "])
def test_a_blank_key_does_not_open_the_server(key: str, started: dict[str, Any], embedding_bundle: Path) -> None:
    result = run(embedding_bundle, BERT_SERVE_API_KEY=key)
    assert (result.exit_code, "BERT_SERVE_API_KEY: expected a key, found nothing" in result.output) == (2, True)
    assert run(embedding_bundle, "--api-key", key).exit_code != 0
    assert not started


def test_a_config_with_an_unknown_key_names_the_known_ones(embedding_bundle: Path, tmp_path: Path) -> None:
    config = tmp_path / "serve.toml"
    config.write_text("prot = 1\n", encoding="utf-8")
    result = run(embedding_bundle, "--config", config)
    assert result.exit_code == 2
    assert "unknown prot; known are" in result.output
    config.write_text("port = \n", encoding="utf-8")
    assert "not a TOML file" in run(embedding_bundle, "--config", config).output


def test_two_bundles_of_one_name_are_refused(embedding_bundle: Path, classifier_bundle: Path) -> None:
    result = run(f"a={embedding_bundle}", f"a={classifier_bundle}")
    assert isinstance(result.exception, InputError)
    assert "a name of its own for each bundle (NAME=BUNDLE), found 'a' twice" in str(result.exception)


def test_a_missing_name_is_refused_and_a_folder_may_have_an_equals_sign(
    started: dict[str, Any], embedding_bundle: Path, tmp_path: Path
) -> None:
    assert "found no name in '=" in str(run(f"={embedding_bundle}").exception)
    bundle = tmp_path / "lr=1" / "toy"
    bundle.parent.mkdir()
    bundle.symlink_to(embedding_bundle, target_is_directory=True)
    assert run(bundle, f"b={bundle}").exit_code == 0
    assert list(started["settings"].bundles.values()) == [bundle, bundle]


def test_what_is_no_bundle_is_refused_before_the_server_starts(started: dict[str, Any], tmp_path: Path) -> None:
    assert isinstance(run(tmp_path).exception, BundleError)
    assert not started


@pytest.mark.parametrize("option", ["--port=70000", "--threads=0", "--max-texts=0", "--log-level=loud"])
def test_values_out_of_range_are_wrong_usage(embedding_bundle: Path, option: str) -> None:
    assert run(embedding_bundle, option).exit_code == 2


@pytest.mark.parametrize("source", ["flag", "environment", "file"])
def test_a_precision_is_checked_wherever_it_comes_from(
    started: dict[str, Any], embedding_bundle: Path, tmp_path: Path, source: str
) -> None:
    def with_precision(name: str) -> Result:
        if source == "flag":
            return run(embedding_bundle, "--precision", name)
        if source == "environment":
            return run(embedding_bundle, BERT_SERVE_PRECISION=name)
        (tmp_path / "serve.toml").write_text(f'precision = "{name}"\n', encoding="utf-8")
        return run(embedding_bundle, "--config", tmp_path / "serve.toml")

    assert with_precision("int8").exit_code == 0
    assert started["settings"].engine.load_options["precision"] == "int8"
    refused = with_precision("fp4")
    assert refused.exit_code == 2
    assert "'fp4' is not one of 'auto', 'fp32'" in refused.output
