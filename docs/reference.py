"""Build the API reference from the docstrings of what is public: ``make docs``."""

import sys
import warnings
from pathlib import Path

import pdoc

import simrec


def build(directory: Path) -> None:
    """Write the reference as HTML."""
    # Public names are imported on first use; pdoc looks only at those that are there.
    for name in simrec.__all__:
        _own_what_is_inherited(getattr(simrec, name))
    # Names of types that only type checkers import are shown as they are written.
    warnings.filterwarnings("ignore", "Error parsing type annotation")
    pdoc.render.configure(docformat="numpy", show_source=False)
    pdoc.pdoc("simrec", output_directory=directory)


def _own_what_is_inherited(member: object) -> None:
    """Show the methods of bases that are not public as those of the class itself."""
    for base in getattr(member, "__mro__", ())[1:]:
        if base.__module__.startswith("simrec.") and base.__name__ not in simrec.__all__:
            for name, method in vars(base).items():
                if not name.startswith("_") and name not in vars(member):
                    setattr(member, name, method)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
