"""Constructor arguments as parameters, and what else scikit-learn asks of an estimator."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from simrec.errors import InputError

T = TypeVar("T", bound="Params")


class Params:
    """`get_params`, `set_params` and `repr` from the names of the constructor's arguments.

    With them scikit-learn's `clone`, `cross_val_score` and `GridSearchCV` work. It need not be
    installed: only scikit-learn itself calls `__sklearn_tags__`.
    """

    @classmethod
    def _names(cls) -> list[str]:
        return [name for name in inspect.signature(cls.__init__).parameters if name != "self"]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the constructor's arguments by name (`deep` is there for scikit-learn).

        Examples
        --------
        >>> from simrec import TwoTower
        >>> TwoTower(bounds=(1, 5)).get_params()["bounds"]
        (1, 5)
        """
        return {name: getattr(self, name) for name in self._names()}

    def set_params(self: T, **params: Any) -> T:
        """Set arguments by name and return self; they count from the next fit on.

        Examples
        --------
        >>> from simrec import TwoTower
        >>> TwoTower().set_params(embedding_dim=8)
        TwoTower(embedding_dim=8)
        """
        names = self._names()
        for name, value in params.items():
            if name not in names:
                raise InputError(
                    f"{type(self).__name__} has no parameter {name!r}: it has {', '.join(names)}"
                )
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self).__init__).parameters
        shown = [
            f"{name}={value!r}"
            for name, value in self.get_params().items()
            if not _same(value, defaults[name].default)
        ]
        fitted = self._fitted_to()
        call = f"{type(self).__name__}({', '.join(shown)})"
        return f"<{call} fitted to {fitted}>" if fitted else call

    def _fitted_to(self) -> str | None:
        """Say what the model was fitted to; None if it was not."""
        raise NotImplementedError

    def __sklearn_is_fitted__(self) -> bool:
        return self._fitted_to() is not None

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import InputTags, RegressorTags, Tags, TargetTags

        return Tags(
            estimator_type="regressor",
            target_tags=TargetTags(required=False),
            regressor_tags=RegressorTags(),
            input_tags=InputTags(sparse=True, allow_nan=True),
            non_deterministic=False,
        )


def r_squared(values: np.ndarray, predictions: np.ndarray) -> float:
    """Return the share of the variance that predictions explain, as regressors of scikit-learn do.

    1 is perfect, 0 as good as the mean of the values; NaN of fewer than two values.

    Examples
    --------
    >>> r_squared(np.array([1.0, 3.0, 5.0]), np.array([1.0, 4.0, 5.0]))
    0.875
    """
    values = np.asarray(values, np.float64)
    if len(values) < 2:
        return float("nan")
    left = float(((values - predictions) ** 2).sum())
    spread = float(((values - values.mean()) ** 2).sum())
    if not spread:
        return 1.0 if not left else 0.0
    return 1 - left / spread


def plain(value: Any) -> Any:
    """Return numbers, sequences and mappings as JSON knows them."""
    if isinstance(value, Mapping):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, np.ndarray) or (
        isinstance(value, Sequence) and not isinstance(value, str)
    ):
        return [plain(one) for one in value]
    return value.item() if isinstance(value, np.generic) else value


def _same(value: Any, default: Any) -> bool:
    return value is default or (type(value) is type(default) and value == default)
