"""Job options that follow the script on the command line: `matex submit --slurm train.py --nodes 4`."""

from __future__ import annotations

import dataclasses
import itertools
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from matex_tf import arguments
from matex_tf.deploy.kinds import KINDS

_ALLOWED_BEFORE_SCRIPT = {"cluster", "is_module", "dry_run", "no_follow", "script", "help"}
"""Parameters that may precede the script although the job options follow it."""
_SIMILARITY_CUTOFF = 0.8


class SubmitCommand(click.Command):
    """The command that parses `matex submit`.

    If a job option precedes the script, all later words belong to the script. Otherwise job options are also taken from
    the words after the script, up to `--`. In both cases a note is printed if a word could belong to either.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, self._move_job_options(ctx, args))
        except click.NoSuchOption as error:
            name = error.option_name
            if "--slurm" not in args or arguments.find_similar(name, error.possibilities or (), _SIMILARITY_CUTOFF):
                raise
            raise click.UsageError(f"there is no option {name}. For an option of sbatch: --sbatch={name}...") from None

    def _move_job_options(self, ctx: click.Context, args: list[str]) -> list[str]:
        """`args` with the job options after the script in front of it; unchanged if the script takes all words."""
        parsed, _, parameters = self.make_parser(ctx).parse_args(list(args))
        _refuse_two_clusters(parameters)
        value: Any = parsed.get("script")
        words = list(value) if isinstance(value, (list, tuple)) else []  # click uses a sentinel for a missing argument
        before, script, after = args[: len(args) - len(words)], words[:1], words[1:]
        if not after or before[-1:] == ["--"]:
            return args
        takes_value = self._list_job_options(parsed.get("cluster"))
        job_options, script_arguments = split_words(after, takes_value)
        if parsed.keys() - _ALLOWED_BEFORE_SCRIPT:  # a job option precedes the script
            names = [word for word in job_options if word.partition("=")[0] in takes_value]
            _note_taker(", ".join(names), script[0], "script")
            return args
        refuse_misspelt(script[0], after, takes_value)
        if job_options and takes_value.get(job_options[-1]):
            raise click.BadOptionUsage(job_options[-1], f"Option '{job_options[-1]}' requires an argument.")
        # Parsed for this check alone: one cluster may be named before the script, and another after it.
        _refuse_two_clusters(self.make_parser(ctx).parse_args([*before, *job_options, *script])[2])
        _note_taker(shlex.join(job_options), script[0], "job; the script's own arguments may follow `--`")
        return [*before, *job_options, "--", *script, *script_arguments]

    def _list_job_options(self, cluster: Any) -> dict[str, bool]:
        """The options that may follow the script, and whether a value follows each of them."""
        names_of_others = {"is_module", *_list_options_of_other_clusters(cluster)}
        return {
            name: not parameter.is_flag
            for parameter in self.params
            if isinstance(parameter, click.Option) and parameter.name not in names_of_others
            for name in parameter.opts
        }


def _note_taker(words: str, script: str, taker: str) -> None:
    """Print who gets the `words` that follow the script and are job options."""
    if words:
        print(f"matex: {words} after {script} goes to the {taker}", file=sys.stderr)


def _refuse_two_clusters(parameters: Sequence[click.Parameter]) -> None:
    clusters = sorted({parameter.opts[0] for parameter in parameters if parameter.name == "cluster"})
    if len(clusters) > 1:
        raise click.UsageError(f"{' and '.join(clusters)} do not go together: a job goes to one cluster")


def _list_options_of_other_clusters(cluster: Any) -> set[str]:
    """Options that exist only on other clusters than `cluster`. After the script, these names belong to the script."""
    options = {name: {field.name for field in dataclasses.fields(kind)} for name, kind in KINDS.items()}
    return set().union(*options.values()) - options[cluster] if cluster in options else set()


def split_words(words: Sequence[str], takes_value: Mapping[str, bool]) -> tuple[list[str], list[str]]:
    """Split the words after the script into job options, with their values, and script arguments.

    "--lr 0.1 --nodes 4 -- --time 3" splits into "--nodes 4" and "--lr 0.1 --time 3". `takes_value` maps each job option
    to whether a value follows it.
    """
    job_options: list[str] = []
    script_arguments: list[str] = []
    remaining = iter(words)
    for word in remaining:
        if word == "--":
            script_arguments += remaining
            break
        name, equals, _ = word.partition("=")
        if word[:2] in takes_value and word[2:].isdigit():  # -n8
            name, equals = word[:2], word[2:]
        if name not in takes_value:
            script_arguments.append(word)
            continue
        job_options.append(word)
        if takes_value[name] and not equals:
            job_options += itertools.islice(remaining, 1)
    return job_options, script_arguments


def refuse_misspelt(script: str, words: Sequence[str], takes_value: Mapping[str, bool]) -> None:
    """Refuse a script argument that resembles a job option: a misspelt job option would silently reach the script.

    Raises click.UsageError, which names the job option that was probably meant.
    """
    words_before_separator = words[: words.index("--")] if "--" in words else words
    _, script_arguments = split_words(words_before_separator, takes_value)
    for word in script_arguments:
        name = word.partition("=")[0]
        if name.startswith("--") and (similar := arguments.find_similar(name, takes_value, _SIMILARITY_CUTOFF)):
            raise click.UsageError(
                f"there is no option {name}; did you mean {similar}? To pass it to the script: "
                f"matex submit ... {script} -- {name} ..."
            )
