"""Models in MLflow, with the real package and its file store."""

import pandas as pd
import pyarrow.parquet as pq
import pytest

from simrec import InputError, TwoTower, cold_start_split, evaluate

mlflow = pytest.importorskip("mlflow", reason="mlflow-skinny is not installed")


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri((tmp_path / "store").as_uri())
    yield tmp_path
    mlflow.set_tracking_uri(before)


def test_log_and_load(store, model_directory, tables):
    from simrec.mlflow import load_model, log_model

    model = TwoTower.load(model_directory)
    ratings = pq.read_table(tables / "ratings.parquet")
    figures = evaluate(model, cold_start_split(ratings))
    with mlflow.start_run() as run:
        info = log_model(model, figures=figures)
    logged = mlflow.get_run(run.info.run_id).data.metrics
    assert logged["warm.rmse"] == pytest.approx(figures["rmse"][0])
    assert "new_items.ndcg_at_10" in logged
    pairs = ratings.select(["user_id", "item_id"]).to_pandas()
    again = load_model(info.model_uri)
    assert again.model_id_ == model.model_id_
    assert (again.predict(pairs) == model.predict(pairs)).all()
    pyfunc = mlflow.pyfunc.load_model(info.model_uri)
    assert (pyfunc.predict(pairs) == model.predict(pairs)).all()
    users = pd.DataFrame({"user_id": [100, 101]})
    assert pyfunc.predict(users).equals(model.recommend([100, 101]))
    assert pyfunc.predict(users, params={"k": 3}).equals(model.recommend([100, 101], k=3))
    assert not [p for p in store.rglob("*") if p.suffix in (".pkl", ".pickle")]
    local = mlflow.artifacts.download_artifacts(artifact_uri=info.model_uri)
    with pytest.raises(InputError, match="no model of SimRec"):
        load_model(f"{local}/artifacts")
