"""Constructor arguments as parameters, the scikit-learn way."""

import inspect
from typing import Any, TypeVar

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


def _same(value: Any, default: Any) -> bool:
    return value is default or (type(value) is type(default) and value == default)
