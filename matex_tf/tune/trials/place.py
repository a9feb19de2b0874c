"""The place of a trial (`trial.PLACE`, `files.mirror`), and the values passed to its script: as options, as environment
variables, or by placeholders such as {{lr}} in files.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from pathlib import Path

from matex_tf.arguments import describe_unknown
from matex_tf.files.mirror import Mirror, read_stamp
from matex_tf.tune.space import ON, Choice, Config, Space, format_value
from matex_tf.tune.space_file import SpaceError, Specification

_PLACEHOLDER = re.compile(r"\{\{\s*([A-Za-z_]\w*)\s*\}\}")


def clean_folder(place: Path, mirror: Mirror) -> None:
    """Remove everything from `place` that the trial has not written: links and unchanged copies of the user's files.

    Called when a trial ends or pauses. Its own files stay for the user, or for its next start.
    """
    for path, link_target in mirror.links.items():
        if path.is_symlink() and os.readlink(path) == link_target and not _is_below_link(path, place):
            path.unlink()
    for path, stamp in mirror.copies.items():
        is_copy = path.is_file() and not path.is_symlink() and read_stamp(path) == stamp
        if is_copy and not _is_below_link(path, place):
            path.unlink()
    for parent, names, _ in os.walk(place, topdown=False):
        for path in (Path(parent, name) for name in names):
            if path.is_symlink():  # made by the trial
                continue
            if path.name == "__pycache__":
                shutil.rmtree(path, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):  # it is not empty
                    path.rmdir()


def _is_below_link(path: Path, place: Path) -> bool:
    """Whether `path` is below a link by which the trial has replaced a folder of `place`."""
    return path.parent.resolve() != place.resolve() / path.parent.relative_to(place)


# Values passed to the script


def list_options(space: Space, config: Config) -> list[str]:
    """The options on the command line: --lr=0.1, -l 0.1, or a flag alone."""
    options = []
    for parameter in space.parameters:
        name = parameter.name
        if not name.startswith("-") or name not in config:
            continue
        value = format_value(config[name])
        if isinstance(parameter, Choice) and parameter.is_flag:
            options += [name] if value == ON else []
        else:
            options += [f"{name}={value}"] if name.startswith("--") else [name, value]
    return options


def list_variables(config: Config) -> dict[str, str]:
    """The environment variables, from the parameters with names such as $LR."""
    return {name[1:]: format_value(value) for name, value in config.items() if name.startswith("$")}


def fill_placeholders(place: Path, spec: Specification, config: Config) -> None:
    """Replace the placeholders in the trial's own copies of the files by values.

    A parameter whose condition does not hold is not in `config`. Its placeholder becomes its text `otherwise`.

    Raises:
        SpaceError: a file is in a folder that all trials share.
    """
    values = {parameter.name: parameter.otherwise or "" for parameter in spec.space.parameters}
    values |= {name: format_value(value) for name, value in config.items()}
    for name in spec.files:
        path, filled_path = place / name, place.with_name("filled")
        if not path.parent.resolve().is_relative_to(place.resolve()):  # a folder that is too large for a copy
            raise SpaceError(
                f"files: trials share {path.parent.relative_to(place)}, which is too large for a copy each, and would "
                f"change your {name}. Move it to a smaller folder"
            )
        text = path.read_bytes().decode()
        filled_path.write_bytes(_PLACEHOLDER.sub(lambda match: values[match[1]], text).encode())
        shutil.copymode(path, filled_path)
        filled_path.replace(path)  # which may be a link to the user's file


def check_files(spec: Specification, source: Path) -> None:
    """Check that the files and the space have the same placeholders.

    Raises:
        SpaceError: a file cannot be read or is outside of `source`; a placeholder in a file is unknown (with file and
            line); or a placeholder of the space is in no file.
    """
    placeholder_names = [parameter.name for parameter in spec.space.parameters if parameter.name[0] not in "-$"]
    missing_placeholders = set(placeholder_names)
    for name in spec.files:
        path = source / name
        if os.path.isabs(name) or not Path(os.path.abspath(path)).is_relative_to(source):
            raise SpaceError(f"files: {name} is not within {source}, of which each trial has a copy")
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise SpaceError(f"files: {name}: {getattr(error, 'strerror', None) or error}") from None
        for number, line in enumerate(lines, 1):
            for placeholder in _PLACEHOLDER.findall(line):
                missing_placeholders.discard(placeholder)
                if placeholder not in placeholder_names:
                    raise SpaceError(
                        f"{name}, line {number}: {{{{{placeholder}}}}}: "
                        f"{describe_unknown('placeholder', placeholder, placeholder_names)}"
                    )
    if missing_placeholders:
        placeholder = min(missing_placeholders)
        raise SpaceError(f"{{{{{placeholder}}}}} is searched, but is in none of {', '.join(spec.files)}")
