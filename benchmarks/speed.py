"""Times as ratios within one run: SimRec against the bare machine and against other libraries.

    python benchmarks/speed.py                          # all rows, medians of 5
    python benchmarks/speed.py --quick                  # small sizes: does it run, roughly how fast
    python benchmarks/speed.py --only top-k pairs
    python benchmarks/speed.py --data DIR               # fits to ratings, items, users (.parquet)

What is compared is timed in turns, in one process or each in one of its own, and every row is a
process of its own. Seconds depend on the machine and on what else it does; ratios hold.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _report import machine
from speed_rows import ROWS, row
from speed_rows.timing import Sizes, last_json


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--only", nargs="+", choices=list(ROWS), metavar="ROW", default=list(ROWS))
    parser.add_argument("--repeats", type=int, default=5, help="each median's number of timings")
    parser.add_argument("--data", type=Path, help="what to fit to; default: synthetic ratings")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--row", choices=list(ROWS), help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def measure(name: str, arguments: list[str]) -> dict[str, Any]:
    """Time a row in a process of its own."""
    command = [sys.executable, str(Path(__file__).resolve()), "--row", name, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"row": name, "error": done.stderr}
    return {"row": name, "ratios": last_json(done.stdout)}


def table(results: list[dict[str, Any]]) -> str:
    """Write the results as Markdown."""
    lines = ["| path | against | this | that | ratio | to reach | |", "|" + " --- |" * 7]
    for result in results:
        if "error" in result:
            last = result["error"].strip().splitlines()[-1:]
            lines.append(f"| {result['row']} | failed: {''.join(last)} | | | | | |")
        for ratio in result.get("ratios", ()):
            sign, how = ("≥", " faster") if ratio["faster"] else ("≤", "")
            note = f" ({ratio['note']})" if ratio["note"] else ""
            cells = [
                ratio["path"],
                ratio["against"],
                _amount(ratio["ours"], ratio["unit"]),
                _amount(ratio["theirs"], ratio["unit"]),
                f"**{ratio['ratio']:.2f}x{how}**{note}",
                f"{sign} {ratio['bar']:.2f}x",
                "reached" if ratio["reached"] else "missed",
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _amount(value: float, unit: str) -> str:
    if unit == "s" and value < 1:
        return f"{value * 1000:,.0f} ms"
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.2f} {unit}"


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line."""
    words = sys.argv[1:] if arguments is None else arguments
    options = parse(words)
    data = None if options.data is None else str(options.data.resolve())
    sizes = Sizes(options.quick, options.repeats, data, str(options.work))
    if options.row:
        print(json.dumps([ratio.to_dict() for ratio in row(options.row)(sizes)]))
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    results = []
    for name in options.only:
        start = time.perf_counter()
        print(f"{name} ...", end=" ", flush=True, file=sys.stderr)
        results.append(measure(name, words))
        print(f"{time.perf_counter() - start:.0f} s", file=sys.stderr)
    whole = {"machine": machine(), "quick": options.quick, "repeats": options.repeats}
    whole["rows"] = results
    text = f"{table(results)}\n\n{machine()}; medians of {options.repeats}, timed in turns.\n"
    (options.out / "speed.json").write_text(json.dumps(whole, indent=1), encoding="utf-8")
    (options.out / "speed.md").write_text(text, encoding="utf-8")
    print(text)
    failed = [result for result in results if "error" in result]
    for result in failed:
        print(f"{result['row']} failed:\n{result['error']}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
