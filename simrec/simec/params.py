"""Constructor arguments as parameters, the scikit-learn way."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from simrec.errors import InputError

T = TypeVar("T", bound="Params")


class Params:
    """`get_params`, `set_params` and `repr` from the names of the constructor's arguments."""

    @classmethod
    def _names(cls) -> list[str]:
        return [name for name in inspect.signature(cls.__init__).parameters if name != "self"]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the constructor's arguments by name (`deep` is there for scikit-learn)."""
        return {name: getattr(self, name) for name in self._names()}

    def set_params(self: T, **params: Any) -> T:
        """Set arguments by name and return self; they count from the next fit on."""
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
        return f"{type(self).__name__}({', '.join(shown)})"


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
