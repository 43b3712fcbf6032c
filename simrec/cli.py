"""The command line ``simrec``: thin over `simrec.jobs`, and the only module that prints."""

import argparse
import contextlib
import json
import logging
import os
import re
import signal
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from simrec import __version__, console
from simrec.errors import InputError
from simrec.jobs import commands
from simrec.jobs.commands import COMMANDS
from simrec.jobs.options import Option, call, nearest

_EPILOG = (
    "`simrec COMMAND --help` lists its options. Exit codes: 0 done, 1 failed, 2 bad usage or input."
)
_GO_ON = "; a batch job goes on from here when it is started again"
_SERVICES = ("serve", "studio")  # they have nothing to go on with
_GROUPS = {
    "data": "data",
    "hold_out": "what is held out",
    "model": "model",
    "batch": "how the job runs",
    "service": "the service",
}


class _Terminated(BaseException):
    """SIGTERM, raised so that locks and temporary files are removed as after Ctrl-C."""


class _Parser(argparse.ArgumentParser):
    """A parser that names the option that was meant."""

    def parse_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        parsed, extra = self.parse_known_args(args, namespace)
        if extra:
            known = [s for action in self._actions for s in action.option_strings]
            hint = nearest(extra[0].split("=")[0], known)
            hint = f"; {hint.replace(chr(39), '')}" if hint.startswith("did") else ""
            self.error(f"unrecognized argument {extra[0]}{hint}")
        return parsed

    def _print_message(self, message, file=None):  # type: ignore[no-untyped-def]
        super()._print_message(console.plain(message), file)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        # Names that the terminal's encoding lacks are no reason to fail.
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    # Flags may stand before the command as well as after it.
    early = []
    while words and words[0] in ("--verbose", "-v", "--quiet", "--json"):
        early.append(words.pop(0))
    if not words or words[0].startswith("-"):
        _top_parser().parse_args(words or ["--help"])
        return 2
    command, verbose = words[0], bool({"--verbose", "-v"} & {*early, *words})
    if command not in COMMANDS:
        _top_parser().error(f"invalid choice: {command!r}; {nearest(command, COMMANDS)}")
    try:
        with _terminable():
            return _run(command, _values(command, [*words[1:], *early]))
    except InputError as error:
        return _say(f"error: {error}", 2, error if verbose else None)
    except KeyboardInterrupt:
        return _say(f"interrupted{'' if command in _SERVICES else _GO_ON}", 130)
    except _Terminated:
        return _say(f"terminated{'' if command in _SERVICES else _GO_ON}", 143)
    except BrokenPipeError:
        # The reader of the output went away, as `head` does: nothing to tell anyone.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        hint = "" if verbose else "\n(--verbose shows where)"
        return _say(f"failed: {_describe(error)}{hint}", 1, error if verbose else None)


@contextmanager
def _terminable() -> Iterator[None]:
    """Raise `_Terminated` in this block on SIGTERM."""

    def stop(signum: int, frame: Any) -> None:
        # A second signal, while things are removed, changes nothing.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise _Terminated

    try:
        before = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # not in the main thread, where signals are not handled
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _run(command: str, values: dict[str, Any]) -> int:
    to_json = values.pop("json", None)
    quiet = values.pop("quiet", False)
    verbose = values.pop("verbose", False)
    level = logging.DEBUG if verbose else logging.INFO
    console.log_to_terminal(logging.WARNING if quiet else level)
    # A bar for people at a terminal, not for files and pipes.
    progress = 0 if quiet else 1 if sys.stderr.isatty() else 2 if verbose else 0
    show = to_json is None or to_json != "-"
    outcome: Any
    if command == "run":
        outcome = []
        for result in commands.function("run")(**values, verbose=progress):
            _show(f"{result['job']}:", result, show)
            outcome.append(result)
    elif command == "demo":
        say = print if show else lambda text: None
        demo = commands.function("demo")
        outcome = demo(**values, say=say, verbose=progress)
    else:
        arguments = commands.arguments(command, values, verbose=progress)
        outcome = call(commands.function(command), arguments)
        _show("", outcome, show)
    if to_json == "-":
        print(json.dumps(outcome, indent=2), flush=True)
    elif to_json is not None:
        from simrec.storage.files import write_text

        write_text(to_json, json.dumps(outcome, indent=2) + "\n")
    return 0 if command != "doctor" or outcome["healthy"] else 1


def _show(title: str, outcome: Mapping[str, Any], show: bool) -> None:
    if show:
        text = console.result(outcome)
        print("\n".join(part for part in (title, text) if part) + "\n", flush=True)


def _top_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="simrec",
        description="Cold-start recommendation: ratings for items and users nobody has rated yet.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"simrec {__version__}")
    # Plain parsers: the command's own is made when it is needed.
    group = parser.add_subparsers(
        title="commands", metavar="COMMAND", required=True, parser_class=argparse.ArgumentParser
    )
    for name, command in COMMANDS.items():
        group.add_parser(name, help=command.summary)
    return parser


def _command_parser(command: str) -> argparse.ArgumentParser:
    summary = COMMANDS[command].summary
    parser = _Parser(
        prog=f"simrec {command}",
        description=summary[0].upper() + summary[1:] + ".",
        epilog="Tables are Parquet or CSV files, directories or URIs of them. How CSV is "
        "written is found, or given: ratings.csv#delimiter=tab&decimal=,&encoding=cp1252.",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    groups: dict[str, Any] = {"": parser}
    for option in commands.options(command).values():
        if option.name in COMMANDS[command].positional:
            parser.add_argument(option.name, metavar=option.name.upper(), help=option.help)
            continue
        if option.group not in groups:
            groups[option.group] = parser.add_argument_group(_GROUPS[option.group])
        _add_option(groups[option.group], option)
    common = parser.add_argument_group("output")
    common.add_argument(
        "--json",
        nargs="?",
        const="-",
        metavar="FILE",
        help="print the result as JSON, or write it to FILE",
    )
    common.add_argument("--quiet", action="store_true", help="no progress")
    common.add_argument(
        "-v", "--verbose", action="store_true", help="more log, choices made, tracebacks of errors"
    )
    return parser


def _add_option(group: Any, option: Option) -> None:
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
    one = "PATH" if option.path else {int: "N", float: "X", str: "NAME"}[option.kinds[0]]
    if option.words and len(option.kinds) == 1:
        one = "{" + ",".join(option.words) + "}"
    if option.mapping:
        settings |= {"nargs": "+", "action": "extend", "metavar": "NAME=WORD"}
    elif option.name == "set":  # one each time, so that FILE may follow
        settings |= {"action": "append", "metavar": "SECTION.OPTION=VALUE"}
    elif option.count is not None:
        several = {2: ("LO", "HI"), "*": one}.get(option.count) or (one,) * int(option.count)
        settings |= {"nargs": option.count, "metavar": several}
    else:
        settings["metavar"] = one
    group.add_argument(option.flag, **settings)


def _values(command: str, words: Sequence[str]) -> dict[str, Any]:
    """Read the options of a command."""
    parser = _command_parser(command)
    values = vars(parser.parse_args(words))
    options = commands.options(command)
    for name in set(values) & set(options):
        try:
            if not isinstance(values[name], bool):
                values[name] = options[name].parse(values[name])
        except InputError as error:
            parser.error(f"argument {error}")
    return values


def _describe(error: Exception) -> str:
    text = str(error).strip()
    if isinstance(error, OSError):
        full = re.search(r"No space left|quota exceeded|requested and \d+ written", text, re.I)
        if full and "disk is full" not in text:
            return f"the disk is full: make room and start again ({text})"
        if error.strerror:
            return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, MemoryError):
        return f"out of memory ({text})" if text else "out of memory"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _say(message: str, code: int, error: Exception | None = None) -> int:
    shown = "".join(traceback.format_exception(error)) if error is not None else ""
    print(console.plain(f"{shown}simrec: {message}"), file=sys.stderr, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
