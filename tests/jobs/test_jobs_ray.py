"""The Ray engine gives what the local one gives, also when a node dies."""

import pyarrow.parquet as pq
import pytest

from simrec import InputError
from simrec.jobs.engine.batch import BatchOptions
from simrec.jobs.io import outputs as output
from simrec.jobs.recommend import audience, recommend
from simrec.jobs.score import score
from simrec.storage.files import sha256

ray = pytest.importorskip("ray", reason="Ray is not installed (pip install 'simrec[ray]')")

LOCAL = BatchOptions(part_rows=200)
RAY = BatchOptions(part_rows=200, engine="ray", workers=2)


def content(directory):
    return {p.name: sha256(p) for p in directory.iterdir() if p.name != "_summary.json"}


@pytest.fixture(scope="module")
def cluster():
    """Two nodes with a processor each."""
    from ray.cluster_utils import Cluster

    quiet = {"include_dashboard": False, "object_store_memory": 100 * 2**20}
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, **quiet})
    made.second = made.add_node(num_cpus=1, object_store_memory=100 * 2**20)
    ray.init(address=made.address, log_to_driver=False, logging_level="error")
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.mark.slow
def test_the_same_bytes_as_on_one_machine(cluster, tables, model_directory, tmp_path):
    pairs = tables / "pairs.parquet"
    new = {"items": tables / "new_items.parquet", "users": tables / "new_users.parquet"}
    for name, options in (("local", LOCAL), ("ray", RAY)):
        score(model_directory, pairs, tmp_path / name / "score", **new, batch=options)
        recommend(
            model_directory,
            tmp_path / name / "recommend",
            users=new["users"],
            exclude=tables / "ratings.parquet",
            batch=options,
        )
        audience(model_directory, tmp_path / name / "audience", items=new["items"], batch=options)
    for job in ("score", "recommend", "audience"):
        assert content(tmp_path / "ray" / job) == content(tmp_path / "local" / job)


@pytest.mark.slow
def test_errors_are_those_of_one_machine(cluster, tables, model_directory, tmp_path):
    pairs = pq.read_table(tables / "pairs.parquet")
    strangers = pairs.set_column(0, "user_id", pairs["note"])
    pq.write_table(strangers, tmp_path / "pairs.parquet", row_group_size=200)
    messages = []
    for options in (LOCAL, RAY):
        with pytest.raises(InputError) as caught:
            score(model_directory, tmp_path / "pairs.parquet", tmp_path / "out", batch=options)
        messages.append(str(caught.value))
    for message in messages:
        assert message.startswith(f"{tmp_path / 'pairs.parquet'} (row group")
        assert "Traceback" not in message
        assert "ids the model does not know" in message


@pytest.mark.slow
def test_a_node_that_dies_costs_its_fragment_only(
    cluster, tables, model_directory, tmp_path, monkeypatch
):
    score(model_directory, tables / "pairs.parquet", tmp_path / "local", batch=LOCAL)
    add = output.OutputDirectory.add
    added = []

    def kill_later(self, part):
        added.append(part.unit)
        if len(added) == 4:
            cluster.remove_node(cluster.second, allow_graceful=False)
        add(self, part)

    monkeypatch.setattr(output.OutputDirectory, "add", kill_later)
    summary = score(model_directory, tables / "pairs.parquet", tmp_path / "ray", batch=RAY)
    assert summary["parts"] == len(added) == 10
    assert content(tmp_path / "ray") == content(tmp_path / "local")


def test_no_cluster_there():
    from simrec.jobs.engine.ray import run

    ray.shutdown()
    with pytest.raises(InputError, match="cannot reach a cluster"):
        list(run(None, [], address="127.0.0.1:1"))
