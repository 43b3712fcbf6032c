"""Clocks: what is compared is timed in turns, so that a busy machine slows down both."""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from _runs import python_environment


@dataclass(frozen=True)
class Sizes:
    """How large the rows are, and how often each is timed."""

    quick: bool
    repeats: int
    data: str | None  # directory with ratings, items and users for fitting; None for synthetic
    work: str  # directory for files that may be large

    def choose(self, full: int, quick: int) -> int:
        """Give the size to use."""
        return quick if self.quick else full


@dataclass(frozen=True)
class Ratio:
    """One line of the table: seconds (or MB) of a path, and of what it is held against.

    `bar` is what to reach: at most so many times the other's time, or, where `faster`, the other
    takes at least so many times as long.
    """

    path: str
    against: str
    ours: float
    theirs: float
    bar: float
    faster: bool = False
    unit: str = "s"
    note: str = ""
    all_ours: list[float] = field(default_factory=list)
    all_theirs: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Ours by theirs, or theirs by ours where the bar is to be faster."""
        return self.theirs / self.ours if self.faster else self.ours / self.theirs

    @property
    def reached(self) -> bool:
        """Whether the bar is reached."""
        return self.ratio >= self.bar if self.faster else self.ratio <= self.bar

    def to_dict(self) -> dict[str, Any]:
        """Give all of it, ready for JSON."""
        return {**asdict(self), "ratio": self.ratio, "reached": self.reached}


def in_turns(
    calls: dict[str, Callable[[], Any]], repeats: int, warm_up: bool = True
) -> dict[str, list[float]]:
    """Time each call as often as asked, all of them in turns; give the seconds."""
    if warm_up:
        for call in calls.values():
            call()
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def compare(
    path: str, against: str, ours: list[float], theirs: list[float], bar: float, **rest: Any
) -> Ratio:
    """Hold medians against each other."""
    return Ratio(
        path, against, median(ours), median(theirs), bar, all_ours=ours, all_theirs=theirs, **rest
    )


def run_python(arguments: Sequence[str]) -> float:
    """Run this Python as a process of its own, and give the processor's seconds it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, *arguments],
        env=python_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)} failed:\n{done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def last_json(text: str) -> Any:
    """Read the last line of what a process printed."""
    return json.loads(text.strip().splitlines()[-1])
