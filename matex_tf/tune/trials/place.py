"""Where a trial runs: a folder that looks like the user's, in which it may write, and what it is told there."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from matex_tf.arguments import describe_unknown
from matex_tf.files.mirror import Mirror, read_stamp
from matex_tf.tune.space import ON, Choice, Config, Space, format_value
from matex_tf.tune.space_file import Asked, SpaceError

_PLACEHOLDER = re.compile(r"\{\{\s*([A-Za-z_]\w*)\s*\}\}")


def clean_folder(place: Path, made: Mirror) -> None:
    """Leave in `place` only what its trial has written."""
    for path, leads in made.links.items():
        if path.is_symlink() and os.readlink(path) == leads:
            path.unlink()
    for path, stamp in made.copies.items():
        is_here = path.resolve() == place.resolve() / path.relative_to(place)  # no link on the way, as of the trial's
        if is_here and path.is_file() and read_stamp(path) == stamp:
            path.unlink()
    for above, inside, _ in os.walk(place, topdown=False):
        for path in (Path(above, name) for name in inside):
            if path.is_symlink():  # the trial's own
                continue
            if path.name == "__pycache__":
                shutil.rmtree(path, ignore_errors=True)
            elif not any(path.iterdir()):
                path.rmdir()


# What the script is told


def list_options(space: Space, config: Config) -> list[str]:
    """The options of the command line."""
    told = []
    for parameter in space.parameters:
        if not parameter.name.startswith("-") or parameter.name not in config:
            continue
        value = format_value(config[parameter.name])
        if isinstance(parameter, Choice) and parameter.is_flag:
            told += [parameter.name] if value == ON else []
        else:
            told += [f"{parameter.name}={value}"] if parameter.name.startswith("--") else [parameter.name, value]
    return told


def list_variables(config: Config) -> dict[str, str]:
    """The variables of the environment."""
    return {name[1:]: format_value(value) for name, value in config.items() if name.startswith("$")}


def fill_placeholders(place: Path, asked: Asked, config: Config) -> None:
    """Put values in the place of placeholders, in the trial's own copies of the files that have some."""
    values = {**dict(asked.otherwise), **{name: format_value(value) for name, value in config.items()}}
    for name in asked.files:
        path = place / name
        text = path.read_text(encoding="utf-8")
        path.unlink()  # it may be a link
        path.write_text(_PLACEHOLDER.sub(lambda found: values[found[1]], text), encoding="utf-8")


def check_files(asked: Asked, source: Path) -> None:
    """See that each placeholder of the space stands in a file, and each of the files in the space.

    Raises:
        SpaceError: with the file and the line.
    """
    names = [one.name for one in asked.space.parameters if one.name[0] not in "-$"]
    missing = set(names)
    for name in asked.files:
        path = source / name
        if os.path.isabs(name) or not Path(os.path.abspath(path)).is_relative_to(source):
            raise SpaceError(f"files: {name} is not within {source}, of which each trial has a copy")
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise SpaceError(f"files: {name}: {getattr(error, 'strerror', None) or error}") from None
        for number, line in enumerate(lines, 1):
            for word in _PLACEHOLDER.findall(line):
                missing.discard(word)
                if word not in names:
                    raise SpaceError(
                        f"{name}, line {number}: {{{{{word}}}}}: {describe_unknown('placeholder', word, names)}"
                    )
    if missing:
        word = min(missing)
        raise SpaceError(f"{{{{{word}}}}} is searched, and stands in none of {', '.join(asked.files)}")
