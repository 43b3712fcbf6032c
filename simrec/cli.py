"""The command line ``simrec``: thin over `simrec.jobs`, and the only module that prints."""

import argparse
import difflib
import json
import logging
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simrec import __version__
from simrec.errors import InputError

if TYPE_CHECKING:
    from simrec.jobs.options import Option

_COMMANDS = {
    "demo": "train, evaluate, score, recommend and report on a small sample",
    "train": "train a model from ratings and features, and save it",
    "update": "learn new ratings into a trained model, as a new version of it",
    "evaluate": "hold out items, users and ratings, train, and print the four-task table",
    "compare": "say which of two models is better at what, or that it cannot be told",
    "replay": "walk through history: how often must a model be trained again?",
    "score": "add a predicted rating to each (user, item) row of a table",
    "recommend": "find the best items for each user",
    "explain": "tell what adds how much to the score of a user and an item",
    "embed": "write the vectors of items or users",
    "export": "write a model for TensorFlow, Faiss or a vector database",
    "report": "write a page on a model for people who decide: quality, reasons, warnings",
    "run": "run the jobs of a pipeline file (TOML)",
    "doctor": "show versions, threads and memory, and try a small model",
}
# Commands that fit a model, and hence take its settings; options that are given without a name.
_FITTED = ("train", "evaluate", "replay")
_POSITIONAL = {"compare": ("a", "b")}
_EPILOG = (
    "`simrec COMMAND --help` lists its options. Exit codes: 0 done, 1 failed, 2 bad usage or input."
)


class _Parser(argparse.ArgumentParser):
    """A parser that names the option that was meant."""

    def parse_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        parsed, extra = self.parse_known_args(args, namespace)
        if extra:
            known = [s for action in self._actions for s in action.option_strings]
            close = difflib.get_close_matches(extra[0].split("=")[0], known, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            self.error(f"unrecognized argument {extra[0]}{hint}")
        return parsed


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    # Flags may stand before the command as well as after it.
    early = []
    while words and words[0] in ("--verbose", "--quiet", "--json"):
        early.append(words.pop(0))
    if not words or words[0].startswith("-") or words[0] not in _COMMANDS:
        _top_parser().parse_args(words or ["--help"])
        return 2
    command, verbose = words[0], "--verbose" in [*early, *words]
    try:
        parser = _command_parser(command)
        values = vars(parser.parse_args([*words[1:], *early]))
        return _run(command, values)
    except InputError as error:
        return _say(f"error: {error}", 2, error if verbose else None)
    except KeyboardInterrupt:
        return _say("interrupted; a batch job goes on from here when it is started again", 130)
    except BrokenPipeError:
        # The reader of the output went away, as `head` does: nothing to tell anyone.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        hint = "" if verbose else "\n(--verbose shows where)"
        return _say(f"failed: {_describe(error)}{hint}", 1, error if verbose else None)


def _run(command: str, values: dict[str, Any]) -> int:
    to_json = values.pop("json", None)
    quiet = values.pop("quiet", False)
    level = logging.DEBUG if values.pop("verbose", False) else logging.INFO
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    logging.getLogger("simrec").setLevel(logging.WARNING if quiet else level)
    progress = 0 if quiet else 1
    show = to_json is None or to_json != "-"
    if command == "run":
        from simrec.jobs import pipeline

        outcome: Any = []
        for result in pipeline.run(values["file"], values.get("set", ()), progress):
            _show(f"{result['job']}:", result, show)
            outcome.append(result)
    elif command == "demo":
        from simrec.jobs.demo import demo

        outcome = demo(**values, say=print if show else lambda text: None, verbose=progress)
    elif command == "doctor":
        from simrec.jobs.doctor import doctor

        outcome = doctor()
        _show("", outcome, show)
    else:
        from simrec.jobs import commands
        from simrec.jobs.options import call

        if command in _FITTED:
            settings = {k: values.pop(k) for k in list(values) if k in commands.model_options()}
            values["model"] = commands.make_model(settings, verbose=progress)
        outcome = call(commands.function(command), values)
        _show("", outcome, show)
    _write_json(outcome, to_json)
    return 0 if command != "doctor" or outcome["healthy"] else 1


def _show(title: str, outcome: Mapping[str, Any], show: bool) -> None:
    if show:
        from simrec.console import result

        print("\n".join(text for text in (title, result(outcome)) if text) + "\n", flush=True)


def _write_json(outcome: Any, to_json: str | None) -> None:
    if to_json is None:
        return
    text = json.dumps(outcome, indent=2) + "\n"
    if to_json == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
    else:
        from simrec.files import write_text

        write_text(to_json, text)


def _top_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="simrec",
        description="Cold-start recommendation: ratings for items and users nobody has rated yet.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"simrec {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, text in _COMMANDS.items():
        commands.add_parser(name, help=text)
    return parser


def _command_parser(command: str) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=f"simrec {command}",
        description=_COMMANDS[command][0].upper() + _COMMANDS[command][1:] + ".",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    if command == "run":
        parser.add_argument("file", metavar="FILE.toml", help="the pipeline")
        parser.add_argument(
            "--set",
            action="append",
            metavar="SECTION.OPTION=VALUE",
            help="replace an option of the file; may be repeated",
        )
    elif command == "demo":
        parser.add_argument("--out", metavar="DIR", help="where outputs go (default: demo)")
    elif command != "doctor":
        _add_job_options(parser, command)
    common = parser.add_argument_group("output")
    common.add_argument(
        "--json",
        nargs="?",
        const="-",
        metavar="FILE",
        help="print the result as JSON, or write it to FILE",
    )
    common.add_argument("--quiet", action="store_true", help="no progress")
    common.add_argument("--verbose", action="store_true", help="more log, tracebacks of errors")
    return parser


def _add_job_options(parser: argparse.ArgumentParser, command: str) -> None:
    from simrec.jobs import commands
    from simrec.jobs.options import options_of

    titles = {"": "options", "data": "data", "batch": "how the job runs"}
    groups: dict[str, Any] = {}
    for option in options_of(commands.function(command)).values():
        if option.group not in groups:
            groups[option.group] = parser.add_argument_group(titles[option.group])
        if option.name in _POSITIONAL.get(command, ()):
            parser.add_argument(option.name, metavar=option.name.upper(), help=option.help)
            continue
        _add_option(groups[option.group], option)
    if command in _FITTED:
        group = parser.add_argument_group("model")
        for option in commands.model_options().values():
            if command != "evaluate" or option.name != "random_state":  # it has --seeds
                _add_option(group, option)


def _add_option(group: Any, option: "Option") -> None:
    text = option.help[:1].upper() + option.help[1:]
    if not option.required and option.default is not None:
        default = option.default
        shown = " ".join(map(str, default)) if isinstance(default, tuple | list) else default
        text += f" (default: {shown if shown != '' else 'none'})"
    settings: dict[str, Any] = {"help": text.replace("%", "%%"), "dest": option.name}
    if option.kinds == (bool,) and option.count is None:
        group.add_argument(option.flag, action=argparse.BooleanOptionalAction, **settings)
        return
    settings["required"] = option.required
    settings["type"] = _checked(option.parse)
    if option.mapping:
        settings |= {"nargs": "+", "action": _Mapping, "metavar": "NAME=WORD", "type": str}
        settings["option"] = option
    elif option.choices and len(option.kinds) == 1:
        settings["metavar"] = "{" + ",".join(option.choices) + "}"
    else:
        settings["metavar"] = _metavar(option)
    if option.count is not None and not option.mapping:
        settings["nargs"] = option.count
        settings["action"] = _Several
    group.add_argument(option.flag, **settings)


def _metavar(option: "Option") -> str | tuple[str, ...]:
    one = "PATH" if option.path else {int: "N", float: "X", str: "NAME"}[option.kinds[0]]
    if option.count == 2:
        return ("LO", "HI")
    return one if not isinstance(option.count, int) else (one,) * option.count


def _checked(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        try:
            return parse(text)
        except InputError as error:
            message = str(error).partition(": ")[2]
            raise argparse.ArgumentTypeError(message) from None

    return convert


class _Several(argparse.Action):
    """Several values become a tuple, a lone ``none`` becomes None."""

    def __call__(self, parser, namespace, values, option_string=None):  # type: ignore[no-untyped-def]
        setattr(namespace, self.dest, None if values == [None] else tuple(values))


class _Mapping(argparse.Action):
    """``name=word`` becomes an entry of a dictionary."""

    def __init__(self, option: "Option", **settings: Any) -> None:
        super().__init__(**settings)
        self.option = option

    def __call__(self, parser, namespace, values, option_string=None):  # type: ignore[no-untyped-def]
        pairs = [word.partition("=") for word in values]
        if not all(equals for _, equals, _ in pairs):
            parser.error(f"argument {option_string}: expected NAME=WORD, got {' '.join(values)!r}")
        try:
            checked = self.option.check({name: word for name, _, word in pairs})
        except InputError as error:
            parser.error(f"argument {option_string}: {error}")
        setattr(namespace, self.dest, {**getattr(namespace, self.dest, {}), **checked})


def _describe(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    text = str(error).strip()
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _say(message: str, code: int, error: Exception | None = None) -> int:
    if error is not None:
        traceback.print_exception(error)
    print(f"simrec: {message}", file=sys.stderr, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
