"""Repeat the experiments of the similarity encoder paper, figures 3 to 8.

    python pipelines/paper/reproduce.py --mnist DIR --out DIR [--figure fig3] [--quick]

Writes a PNG for each figure, results.json and results.md. Without --mnist it takes the small digits
that come with scikit-learn. Needs simrec[paper] (scikit-learn, matplotlib).
"""

import argparse
import json
import logging
import time
from pathlib import Path

from digits import load
from drawing import DRAW
from experiments import FIGURES, Scale, logger
from table import markdown


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mnist", type=Path, help="directory with mnist10k.npz and mnist07.npz")
    parser.add_argument("--out", type=Path, required=True, help="directory for the results")
    parser.add_argument(
        "--figure", action="append", choices=sorted(FIGURES), help="only this one (repeatable)"
    )
    parser.add_argument("--quick", action="store_true", help="fewer digits, dimensions and epochs")
    parser.add_argument("--digits", type=int, help="use only so many digits")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logger.setLevel(logging.INFO)

    n = options.digits or (2500 if options.quick else None)
    ten, two = load(options.mnist, n)
    scale = Scale(options.quick)
    options.out.mkdir(parents=True, exist_ok=True)
    record = options.out / "results.json"
    results = {"data": ten.name, "figures": {}, "seconds": {}}
    if record.exists() and options.figure:
        # One figure again: the others stay as they are.
        results = json.loads(record.read_text())
    results.update(
        data=ten.name,
        n_train=len(ten.train),
        n_test=len(ten.test),
        as_published=options.mnist is not None and n is None,
    )
    names = options.figure or sorted(FIGURES)
    for number, name in enumerate(names, 1):
        run, which = FIGURES[name]
        logger.info("[%d/%d] %s: %s", number, len(names), name, run.__doc__.splitlines()[0])
        start = time.perf_counter()
        results["figures"][name] = run(ten if which == "digits" else two, scale)
        results["seconds"][name] = round(time.perf_counter() - start, 1)
        logger.info("[%d/%d] %s: %.0f s", number, len(names), name, results["seconds"][name])
        DRAW[name](results["figures"][name], options.out / f"{name}.png")
        record.write_text(json.dumps(results, indent=1))
        (options.out / "results.md").write_text(markdown(results))
    print((options.out / "results.md").read_text())
    print(f"figures, results.json and results.md are in {options.out}")


if __name__ == "__main__":
    main()
