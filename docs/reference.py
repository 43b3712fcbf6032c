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
        getattr(simrec, name)
    # Names of types that only type checkers import are shown as they are written.
    warnings.filterwarnings("ignore", "Error parsing type annotation")
    pdoc.render.configure(docformat="numpy", show_source=False)
    pdoc.pdoc("simrec", output_directory=directory)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
