"""The command line of `matex submit`, on which job options may also follow the script.

`matex submit --slurm train.py --nodes 4 --epochs 90` is parsed as `matex submit --slurm --nodes 4 -- train.py --epochs
90`: `SubmitCommand` moves the job options in front of the script, and lets click parse the result.
"""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from matex_tf import arguments
from matex_tf.deploy.clusters import KINDS

_ALLOWED_BEFORE_SCRIPT = {*KINDS, "is_module", "dry_run", "no_follow", "script", "help"}
"""Parameters of click that may precede the script although the job options follow it: `matex submit --slurm --dry-run
train.py --nodes 4`.
"""
_SIMILARITY_CUTOFF = 0.8  # of a word that counts as a misspelt option, see `arguments.find_similar`


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
            # A word similar to an option of `matex submit` is probably that option, misspelt, as click's message says.
            if "--slurm" not in args or arguments.find_similar(name, error.possibilities or (), _SIMILARITY_CUTOFF):
                raise
            raise click.UsageError(f"there is no option {name}. For an option of sbatch: --sbatch={name}...") from None

    def _move_job_options(self, ctx: click.Context, args: list[str]) -> list[str]:
        """`args`, with the job options moved from behind the script to its front.

        Returns `args` itself if all words after the script belong to the script: `--` or a job option precedes it.
        """
        parsed_values, _, _ = self.make_parser(ctx).parse_args(list(args))
        script_value: Any = parsed_values.get("script")
        # click uses a sentinel for a missing argument.
        script_words = list(script_value) if isinstance(script_value, (list, tuple)) else []
        words_before, words_after = args[: len(args) - len(script_words)], script_words[1:]
        if not words_after or words_before[-1:] == ["--"]:
            return args
        script, takes_value = script_words[0], self._find_job_options(parsed_values)
        if parsed_values.keys() - _ALLOWED_BEFORE_SCRIPT:  # a job option precedes the script
            ambiguous_words = words_after[: words_after.index("--")] if "--" in words_after else words_after
            option_words = [word for word in ambiguous_words if word.partition("=")[0] in takes_value]
            _print_owner(", ".join(option_words), script, "script")
            return args
        job_options, script_arguments = split_words(script, words_after, takes_value)
        _print_owner(shlex.join(job_options), script, "job; the script's own arguments may follow `--`")
        return [*words_before, *job_options, "--", script, *script_arguments]

    def _find_job_options(self, parsed_values: Mapping[str, Any]) -> dict[str, bool]:
        """The names of the options that may follow the script, such as `--nodes`; True if a value follows the option.

        An option that the clusters in `parsed_values` do not have belongs to the script: `--image` after `--slurm`. So
        does `-m`, which says that the word after it is a module, and thus precedes the script.
        """
        named_clusters = parsed_values.keys() & KINDS.keys() or KINDS.keys()  # --slurm is the key "slurm"; none: all
        other_options = {field.name for kind in KINDS.values() for field in dataclasses.fields(kind)}
        other_options -= {field.name for name in named_clusters for field in dataclasses.fields(KINDS[name])}
        return {
            name: not parameter.is_flag
            for parameter in self.params
            if isinstance(parameter, click.Option) and parameter.name not in {"is_module", *other_options}
            for name in parameter.opts
        }


def _print_owner(option_text: str, script: str, owner: str) -> None:
    """Print whether `option_text`, words after the script with names of job options, goes to the job or the script."""
    if option_text:
        print(f"matex: {option_text} after {script} goes to the {owner}", file=sys.stderr)


def split_words(script: str, words: Sequence[str], takes_value: Mapping[str, bool]) -> tuple[list[str], list[str]]:
    """Split the words after the script into job options, with their values, and script arguments.

    "--lr 0.1 --nodes 4 -- --time 3" splits into "--nodes 4" and "--lr 0.1 --time 3". `takes_value` maps each job option
    to whether a value follows it.

    Raises:
        click.UsageError: a job option lacks its value, or a word is probably a misspelt job option, which would
            silently reach the script.
    """
    job_options: list[str] = []
    script_arguments: list[str] = []
    remaining_words = iter(words)
    for word in remaining_words:
        if word == "--":
            script_arguments += remaining_words
            break
        name, equals, _ = word.partition("=")
        includes_value = bool(equals)
        if word[:2] in takes_value and word[2:].isdigit():  # -n8
            name, includes_value = word[:2], True
        if name in takes_value:
            job_options.append(word)
            if takes_value[name] and not includes_value:
                if (value := next(remaining_words, None)) is None:
                    raise click.BadOptionUsage(name, f"Option '{name}' requires an argument.")
                job_options.append(value)
            continue
        if name.startswith("--") and (similar_option := arguments.find_similar(name, takes_value, _SIMILARITY_CUTOFF)):
            raise click.UsageError(
                f"there is no option {name}; did you mean {similar_option}? To pass it to the script: "
                f"matex submit ... {script} -- {name} ..."
            )
        script_arguments.append(word)
    return job_options, script_arguments
