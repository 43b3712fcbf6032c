"""Models and their figures in MLflow: a pyfunc model from code, without pickle."""

from __future__ import annotations

import math
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simrec import __version__
from simrec.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from simrec.model.two_tower import TwoTower

_DIRECTORY = "two_tower"


def _mlflow() -> Any:
    try:
        import mlflow
        import mlflow.pyfunc
    except ImportError as error:
        raise ImportError("simrec.mlflow needs MLflow: pip install mlflow-skinny") from error
    return mlflow


def log_model(
    model: TwoTower,
    name: str = "model",
    *,
    figures: pd.DataFrame | None = None,
    registered_model_name: str | None = None,
) -> Any:
    """Log a fitted model to the active run, or to a new one, as a pyfunc model.

    What is stored is the model directory and a file of code that loads it. As a pyfunc it takes
    pairs (user_id, item_id) and gives ratings, or user_id alone and gives lists of ``params={"k":
    10}`` items.

    Parameters
    ----------
    model : TwoTower
        The model.
    name : str
        Its name in the run.
    figures : pandas.DataFrame, optional
        What `evaluate` returned: logged as metrics such as ``new_items.rmse``.
    registered_model_name : str, optional
        Where to register it.

    Returns
    -------
    mlflow.models.model.ModelInfo
        With ``model_uri``, which `load_model` takes.
    """
    mlflow = _mlflow()
    from mlflow.models import ModelSignature
    from mlflow.types import ParamSchema, ParamSpec

    signature = ModelSignature(params=ParamSchema([ParamSpec("k", "long", 10)]))
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch) / _DIRECTORY
        model.save(directory)
        if figures is not None:
            mlflow.log_metrics(metrics(figures))
        return mlflow.pyfunc.log_model(
            name=name,
            python_model=str(Path(__file__).with_name("code.py")),
            artifacts={_DIRECTORY: str(directory)},
            pip_requirements=[f"simrec=={__version__}"],
            registered_model_name=registered_model_name,
            signature=signature,
            metadata={"simrec_model_id": model.model_id_},
        )


def load_model(uri: str) -> TwoTower:
    """Load a model that `log_model` has logged, as a `TwoTower`; no code of it is run."""
    from simrec.model.two_tower import TwoTower

    local = Path(_mlflow().artifacts.download_artifacts(artifact_uri=uri))
    directory = local / "artifacts" / _DIRECTORY
    if not directory.is_dir():
        raise InputError(f"{uri}: no model of SimRec; log it with simrec.mlflow.log_model.")
    return TwoTower.load(directory)


def metrics(figures: pd.DataFrame) -> dict[str, float]:
    """Return the figures of `evaluate` by names that MLflow takes: ``warm.ndcg_at_10``."""
    return {
        re.sub(r"[^\w.]", "_at_", f"{row['task']}.{name}"): float(value)
        for row in figures.reset_index().to_dict("records")
        for name, value in row.items()
        if name not in ("task", "index") and value is not None and math.isfinite(value)
    }
