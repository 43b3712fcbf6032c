"""The code of a logged model: MLflow runs this file to load it as a pyfunc."""

from typing import Any

from mlflow.models import set_model
from mlflow.pyfunc import PythonModel

from simrec import TwoTower


class TwoTowerModel(PythonModel):
    """Ratings for pairs, lists for users."""

    def load_context(self, context: Any) -> None:
        """Load the model directory."""
        self.model = TwoTower.load(context.artifacts["two_tower"])

    # Without types, of which MLflow would make a schema.
    def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def]
        """Return a rating for each pair; for a table without items, k items for each user."""
        if {"item_id", self.model.columns_.item_id} & set(model_input.columns):
            return self.model.predict(model_input)
        return self.model.recommend(model_input, **(params or {}))


set_model(TwoTowerModel())
