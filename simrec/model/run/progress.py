"""Progress of a fit: a bar or lines, and the history."""

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from simrec.console import lines_shown

logger = logging.getLogger(__name__)

Step = Callable[[], None]


def no_step() -> None:
    """Show no progress."""


class Stage(NamedTuple):
    """A stage of a fit: what is done, its share of the work, and its steps; both about."""

    name: str
    share: float
    steps: int


class Progress:
    """Keeps what is logged of each epoch, and moves the bar.

    `verbose` is 0 for silence, 1 for a bar over all stages, 2 for a line for each epoch (logged).
    """

    def __init__(self, stages: Sequence[Stage], verbose: int = 0) -> None:
        self.history: list[dict[str, float]] = []
        self._stages = {stage.name: stage for stage in stages}
        self._stage, self._steps, self._verbose = "", 0, verbose
        self._shown = ExitStack()
        self._bar: Any = None

    def __enter__(self) -> "Progress":
        if self._verbose == 1:
            from tqdm.auto import tqdm

            form = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}{postfix}"
            self._bar = tqdm(total=100.0, desc="fit", leave=True, bar_format=form)
        if self._verbose == 2:
            self._shown.enter_context(lines_shown(logger))
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._shown.close()
        if self._bar is not None:
            if error is None:
                self._bar.set_description_str("fit", refresh=False)
                self._bar.update(self._bar.total - self._bar.n)
            self._bar.close()

    def step(self, stage: str) -> None:
        """Move the bar by a step of a stage; the stages before it are done."""
        if self._bar is None or stage not in self._stages:
            return
        if stage != self._stage:
            self._stage, self._steps = stage, 0
            self._bar.set_description_str(stage, refresh=False)
        self._steps += 1
        names = list(self._stages)
        before = sum(self._stages[name].share for name in names[: names.index(stage)])
        of = self._stages[stage]
        # More steps than expected do not reach the end of the stage: only the next stage does.
        done = before + of.share * self._steps / max(of.steps, self._steps + 1)
        total = sum(one.share for one in self._stages.values())
        self._bar.update(max(0.0, 100.0 * done / total - self._bar.n))

    def epoch(self, stage: str, logs: dict[str, float]) -> None:
        """Take note of a finished epoch of a stage."""
        self.history.append({name: float(value) for name, value in logs.items()})
        text = ", ".join(f"{name} {value:.4f}" for name, value in logs.items())
        if self._verbose == 2:
            logger.info("epoch %d: %s", len(self.history), text)
        if self._bar is not None:
            self._bar.set_postfix_str(text, refresh=False)
        self.step(stage)
