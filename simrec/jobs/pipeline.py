"""Run the jobs of a pipeline file (TOML): a section for each, with the options of its command.

``[data]``, ``[model]`` and ``[engine]`` hold what jobs share; docs/jobs.md has the rules.
"""

import datetime
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from simrec.data.sides import USUAL, Columns
from simrec.data.source import open_source
from simrec.errors import InputError
from simrec.jobs import commands
from simrec.jobs.commands import COMMANDS
from simrec.jobs.engine.batch import BatchOptions
from simrec.jobs.io.inputs import ModelReference, unless_empty
from simrec.jobs.io.outputs import check_apart
from simrec.jobs.options import Option, call, nearest, options_of
from simrec.jobs.train import DataOptions

# What a training takes of [engine].
_CLUSTER = ("engine", "workers", "address")
_TABLES = ("ratings", "items", "users")
_SECTIONS = ("data", "model", "engine", *commands.SECTIONS)
# Columns that the tables of these options need.
_PAIR = ("user_id", "item_id")
_COLUMNS = {
    **dict.fromkeys(("ratings", "pairs", "exclude"), _PAIR),
    **{"items": ("item_id",), "users": ("user_id",)},
}
_MODELS, _WRITTEN = ("model", "a", "b"), ("out", "checkpoint")

Sections = dict[str, list[dict[str, Any]]]


def section_options(section: str) -> dict[str, Option]:
    """Return the options a section may hold."""
    if section == "data":
        return options_of(DataOptions)
    if section == "engine":
        return options_of(BatchOptions)
    return commands.model_options() if section == "model" else commands.options(section)


def run(
    file: str | os.PathLike, set: tuple[str, ...] = (), date: str | None = None, verbose: int = 1
) -> Iterator[dict[str, Any]]:
    """Run the jobs of a pipeline file one after the other; yield the result of each.

    All sections are checked, with their inputs, before the first job starts.

    Parameters
    ----------
    file : path
        The pipeline (TOML).
    set : sequence of str
        Options of the file to replace, as section.option=value; paths among them are relative to
        the working directory.
    date : str, optional
        What {date} in paths stands for; today by default.
    verbose : int
        Whether models show their progress.
    """
    jobs = list(_plan(read(file, set, date), str(file)))
    outputs: list[tuple[str, str, Columns]] = []
    for name, values in jobs:
        try:
            _check_job(name, values, outputs)
        except InputError as error:
            raise InputError(f"{file}: [{name}] {error}") from None
    # Settings are checked by making the models.
    prepared = [(name, commands.arguments(name, values, verbose)) for name, values in jobs]
    for name, arguments in prepared:
        yield call(commands.function(name), arguments)


def read(
    file: str | os.PathLike, overrides: Sequence[str] = (), date: str | None = None
) -> Sections:
    """Read and check a pipeline file: the values of each section, in order."""
    path, date = Path(file), date or datetime.date.today().isoformat()
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not valid TOML: {error}") from None
    sections: Sections = {}
    for section, content_of in content.items():
        if section not in _SECTIONS:
            raise InputError(f"{path}: unknown section [{section}]; {nearest(section, _SECTIONS)}")
        several = isinstance(content_of, list)
        if several and (section not in COMMANDS or COMMANDS[section].once):
            raise InputError(f"{path}: section [{section}] can be given only once")
        tables = content_of if several else [content_of]
        if not all(isinstance(table, Mapping) for table in tables):
            raise InputError(f"{path}: {section} must be a section: [{section}]")
        sections[section] = [_check(path, section, table) for table in tables]
    for override in overrides:
        _override(sections, override)
    for section, tables in sections.items():
        options = section_options(section)
        for table in tables:
            for key, value in table.items():
                if options[key].path and isinstance(value, str):
                    table[key] = value.replace("{date}", date)
    return sections


def _option(section: str, key: str, where: Any) -> Option:
    options = section_options(section)
    if key not in options:
        raise InputError(f"{where}: [{section}] has no option {key!r}; {nearest(key, options)}")
    return options[key]


def _check(path: Path, section: str, table: Mapping[str, Any]) -> dict[str, Any]:
    values = {}
    for name, value in table.items():
        option = _option(section, name, path)
        try:
            found = option.check(value)
        except InputError as error:
            raise InputError(f"{path}: [{section}] {error}") from None
        is_word = not isinstance(found, str) or found in option.choices
        if option.path and not is_word and "://" not in found:
            found = os.path.normpath(path.resolve().parent / found)
        values[name] = found
    return values


def _override(sections: Sections, text: str) -> None:
    name, equals, value = text.partition("=")
    section, dot, key = name.partition(".")
    if not (equals and dot):
        raise InputError(f"--set: expected section.option=value, got {text!r}")
    if section not in _SECTIONS:
        raise InputError(f"--set: unknown section {section!r}; {nearest(section, _SECTIONS)}")
    option = _option(section, key, "--set")
    several = option.count is not None or option.mapping
    words = [word for word in value.split(",") if word] if several else value
    for table in sections.setdefault(section, [{}]):
        table[key] = option.parse(words)


def _plan(sections: Sections, file: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each job with all its options; raise if a required one is missing."""
    if not any(section in COMMANDS for section in sections):
        raise InputError(f"{file}: no job in it: add a section of {', '.join(commands.SECTIONS)}")
    model = sections.get("train", [{}])[0].get("out")
    for section, tables in sections.items():
        for table in tables if section in COMMANDS else ():
            options = commands.options(section)
            values = {**_shared(sections, section, table), **table}
            if model is not None and "model" in options:
                values.setdefault("model", model)
            for name, option in options.items():
                if option.required and name not in values:
                    where = "data" if option.group == "data" and section != "update" else section
                    raise InputError(f"{file}: [{where}] lacks {name!r} ({option.help})")
            yield section, values
            if section == "update":
                model = values["out"]


def _shared(sections: Sections, section: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a job takes from [data], [model] and [engine]."""
    data, settings, engine = (sections.get(n, [{}])[0] for n in ("data", "model", "engine"))
    groups = {option.group for option in commands.options(section).values()}
    values: dict[str, Any] = {}
    if COMMANDS[section].batch:
        values |= {"overwrite": True, **engine}  # what an earlier run wrote
    elif section == "train" and table.get("engine", engine.get("engine")) == "ray":
        values |= {key: engine[key] for key in _CLUSTER if key in engine}
    if "data" in groups:
        own = _TABLES if section == "update" else ()
        values |= {key: value for key, value in data.items() if key not in own}
    if COMMANDS[section].fits:
        values |= settings
    return values


def _check_job(
    section: str, values: Mapping[str, Any], outputs: list[tuple[str, str, Columns]]
) -> None:
    """Look at the inputs and the output of a job; those of earlier jobs are yet to be written."""
    options = commands.options(section)
    paths = {
        name: values[name]
        for name, option in options.items()
        if option.path and isinstance(values.get(name), str) and values[name] not in option.choices
    }
    inputs = {name: path for name, path in paths.items() if name not in _WRITTEN}
    made = {name: _maker(path, outputs) for name, path in inputs.items()}
    own = USUAL
    for name in [name for name in _MODELS if name in inputs]:
        earlier = made[name]
        found = ModelReference.of(inputs[name]).columns if earlier is None else earlier[2]
        own = found if name in ("model", "a") else own
    own = replace(own, **{name: values[name] for name in asdict(own) if name in values})
    for name, path in inputs.items():
        nobody = section == "update" and name != "ratings" and unless_empty(path) is None
        if name in _COLUMNS and made[name] is None and not nobody:
            source = open_source(path, name)
            rated = name == "ratings" and own.rating is not None
            needed = (*_COLUMNS[name], "rating") if rated else _COLUMNS[name]
            source.renamed(own.renaming()).require_columns(*needed)
            if name == "pairs" and section == "score":
                source.require_columns(*(values.get("select") or ()))
    out = paths.get("out")
    if out is None:
        return
    check_apart(out, **inputs)
    for earlier in outputs:
        check_apart(out, **{f"the output of [{earlier[0]}]": earlier[1]})
    outputs.append((section, out, own))


def _maker(
    path: str, outputs: Sequence[tuple[str, str, Columns]]
) -> tuple[str, str, Columns] | None:
    """Return the earlier job that writes a path, or the directory it lies in."""
    inside = [one for one in outputs if f"{path.rstrip('/')}/".startswith(f"{one[1].rstrip('/')}/")]
    return inside[-1] if inside else None
