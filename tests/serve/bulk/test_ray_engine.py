"""`bert-export batch --engine ray`: the same files as the local engine's, also where a node dies."""

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from bert_runtime import BundleError, DeploymentError, MissingExtraError
from bert_serve.bulk.batch_function import BatchFunction
from bert_serve.bulk.ray_engine import RayEngine
from bert_serve.bulk.run import prepare_run

from .conftest import RunBatch, ids, read_answers, write_parquet
from .ray_cluster import NODE, ray_cluster, ray_folder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.skipif(find_spec("ray") is None, reason="needs ray"),
    pytest.mark.filterwarnings("ignore::ResourceWarning:ray"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # sockets that Ray leaves open
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster of a head and one node."""
    with ray_cluster(workers=1) as cluster:
        yield cluster


def test_both_engines_write_the_same(
    cluster: Any, run_batch: RunBatch, classifier_bundle: Path, texts: Path, tmp_path: Path
) -> None:
    arguments = [classifier_bundle, "--input", texts, "--part-rows", 16, "--threads", 1]
    assert run_batch(*arguments, "--output", tmp_path / "local").exit_code == 0
    ray_options = ["--output", tmp_path / "ray", "--engine", "ray", "--address", cluster.address]
    result = run_batch(*arguments, *ray_options)
    assert (result.exit_code, "45 rows in 5 files of answers" in result.stdout) == (0, True)
    assert read_answers(tmp_path / "ray") == read_answers(tmp_path / "local")
    assert "all 5 files of answers are there already" in run_batch(*arguments, *ray_options).stdout


def test_inputs_that_cannot_be_processed_are_the_same_error(
    cluster: Any, run_batch: RunBatch, classifier_bundle: Path, texts: Path, tmp_path: Path
) -> None:
    (texts / "b.parquet").write_bytes((texts / "b.parquet").read_bytes().replace(b"text", b"txet"))
    result = run_batch(
        classifier_bundle, "--input", texts, "--output", tmp_path / "x", "--engine", "ray", "--address", cluster.address
    )
    assert (result.exit_code, "expected a column 'text', found 'id', 'txet'" in result.stderr) == (1, True)
    assert sorted(read_answers(tmp_path / "x")) == ["a.parquet", "c.parquet"]


def test_a_node_dies_and_all_rows_arrive_once(cluster: Any, classifier_bundle: Path, tmp_path: Path) -> None:
    rows, part_rows, attempts = 120, 4, tmp_path / "attempts"
    attempts.mkdir()
    write_parquet(tmp_path / "texts/a.parquet", 0, rows)

    @dataclass(frozen=True)
    class SlowFunction(BatchFunction):
        """Note the row and the node of each attempt. Nodes wait for the doomed one, which waits for its death."""

        def __call__(self, data: Any) -> Any:
            import ray

            node = ray.get_runtime_context().get_node_id()
            (attempts / f"{data.column('id')[0].as_py()} {node} {uuid.uuid4()}").touch()
            end = time.monotonic() + 60
            while time.monotonic() < end and (node == doomed_id or not has_begun(doomed_id)):
                time.sleep(0.05)
            return super().__call__(data)

    def has_begun(node: str) -> bool:
        return any(node in path.name for path in attempts.iterdir())

    doomed = cluster.add_node(num_cpus=1, **NODE)  # the third
    doomed_id = doomed.node_id  # the node itself cannot be pickled
    killed: list[int] = []

    def kill_in_the_middle(_: int) -> None:
        """Kill the node while it has a part that is begun and not done."""
        begun = [int(path.name.split()[0]) for path in attempts.iterdir() if doomed.node_id in path.name]
        done = {number for table in read_answers(tmp_path / "answers").values() for number in table["id"].to_pylist()}
        if not killed and (pending := [number for number in begun if number not in done]):
            cluster.remove_node(doomed, allow_graceful=False)
            killed.extend(pending)

    function = SlowFunction(bundle=str(classifier_bundle))
    engine = RayEngine(address=cluster.address)
    with prepare_run([str(tmp_path / "texts")], tmp_path / "answers", function, part_rows=part_rows) as run:
        summary = run.execute(engine, kill_in_the_middle)
    assert killed
    assert (summary.rows, summary.parts) == (rows, rows // part_rows)
    answers = read_answers(tmp_path / "answers")
    assert ids(answers) == list(range(rows))
    started = [int(path.name.split()[0]) for path in attempts.iterdir()]
    assert set(started) == set(range(0, rows, part_rows))
    assert started.count(killed[0]) >= 2  # it was done again elsewhere
    assert not list((tmp_path / "answers").glob(".*"))


@pytest.mark.parametrize(
    ("error", "expected", "message"),
    [
        (BundleError("no bundle here"), BundleError, "^no bundle here$"),
        (OSError(28, "No space left on device"), OSError, "No space left"),
        (ModuleNotFoundError("No module named 'x'"), DeploymentError, "No module named 'x' on a node: install"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_of_nodes_are_those_of_this_machine(
    error: Exception, expected: type[Exception], message: str, cluster: Any, classifier_bundle: Path, tmp_path: Path
) -> None:
    write_parquet(tmp_path / "texts/a.parquet", 0, 4)

    class FailingFunction(BatchFunction):
        def __call__(self, data: Any) -> Any:
            raise error

    function = FailingFunction(str(classifier_bundle))
    with (
        prepare_run([str(tmp_path / "texts")], tmp_path / "answers", function) as run,
        pytest.raises(expected, match=message),
    ):
        run.execute(RayEngine(address=cluster.address))
    assert read_answers(tmp_path / "answers") == {}


def test_a_cluster_that_is_not_there(run_batch: RunBatch, classifier_bundle: Path, texts: Path, tmp_path: Path) -> None:
    engine = RayEngine(address="nowhere")
    with (
        prepare_run([str(texts)], tmp_path / "x", BatchFunction(str(classifier_bundle))) as run,
        pytest.raises(DeploymentError, match="nowhere: Ray cannot be reached"),
    ):
        run.execute(engine)


def test_ray_on_this_machine(classifier_bundle: Path, texts: Path, tmp_path: Path) -> None:
    """Without an address, Ray is started and stopped."""
    import ray

    with (
        ray_folder(),
        prepare_run([str(texts)], tmp_path / "x", BatchFunction(str(classifier_bundle))) as run,
        pytest.raises(DeploymentError, match="expected a machine of 1000 cores or more"),
    ):
        run.execute(RayEngine(cores_per_replica=1000))
    assert not ray.is_initialized()


def test_a_missing_ray_is_an_extra(
    classifier_bundle: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "ray", None)
    with (
        prepare_run([str(texts)], tmp_path / "x", BatchFunction(str(classifier_bundle))) as run,
        pytest.raises(MissingExtraError, match=r"ray.*\[ray\]"),
    ):
        run.execute(RayEngine())
