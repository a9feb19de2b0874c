"""`matex submit --slurm train.py --nodes 4`: options of the job that follow the script."""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from matex_tf.deploy.kinds import KINDS

_BESIDE = {"cluster", "is_module", "dry_run", "no_follow", "script", "help"}
"""What may stand before the script while the options of the job follow it."""
_NEAR = 0.8


class SubmitCommand(click.Command):
    """Once an option of the job stands before the script, all that follows it is the script's, as for `matex tune`.

    Else ours are taken from among what follows it, up to `--`. Either is said, where words could be meant otherwise.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return self._parse_words(ctx, args)
        except click.NoSuchOption as error:
            name = error.option_name
            if "--slurm" not in args or difflib.get_close_matches(name, error.possibilities or (), cutoff=_NEAR):
                raise
            raise click.UsageError(f"there is no option {name}. If it is one of sbatch: --sbatch={name}...") from None

    def _parse_words(self, ctx: click.Context, args: list[str]) -> list[str]:
        before, _, order = self.make_parser(ctx).parse_args(list(args))
        _refuse_two_clusters(order)
        given: Any = before.get("script")
        script = list(given) if isinstance(given, (list, tuple)) else []  # click has a mark of its own for none
        head, following = args[: len(args) - len(script)], script[1:]
        if not following or head[-1:] == ["--"]:
            return super().parse_args(ctx, args)
        others = _list_options_of_others(before.get("cluster"))
        takes = {
            name: not one.is_flag
            for one in self.params
            if isinstance(one, click.Option) and one.name != "is_module" and one.name not in others
            for name in one.opts
        }
        own, left = split_words(following, takes)
        if before.keys() - _BESIDE:
            if own:
                names = ", ".join(word for word in own if word.partition("=")[0] in takes)
                print(f"matex: {names} after {script[0]} goes to the script", file=sys.stderr)
            return super().parse_args(ctx, args)
        refuse_misspelt(script[0], following, takes)
        if own and takes.get(own[-1]):
            raise click.BadOptionUsage(own[-1], f"Option '{own[-1]}' requires an argument.")
        _refuse_two_clusters(self.make_parser(ctx).parse_args([*head, *own, script[0]])[2])
        if own:
            told = f"{shlex.join(own)} after {script[0]} goes to the job; the script's own arguments may follow `--`"
            print(f"matex: {told}", file=sys.stderr)
        return super().parse_args(ctx, [*head, *own, "--", script[0], *left])


def _refuse_two_clusters(order: Sequence[click.Parameter]) -> None:
    clusters = sorted({one.opts[0] for one in order if one.name == "cluster"})
    if len(clusters) > 1:
        raise click.UsageError(f"{' and '.join(clusters)} do not go together: a job goes to one cluster")


def _list_options_of_others(cluster: Any) -> set[str]:
    """The options that only other clusters than the one that is named have: after the script they are the script's."""
    has = {name: {one.name for one in dataclasses.fields(kind)} for name, kind in KINDS.items()}
    return set().union(*has.values()) - has[cluster] if cluster in has else set()


def split_words(words: Sequence[str], takes: Mapping[str, bool]) -> tuple[list[str], list[str]]:
    """Our options among `words`, with their values, and what is left; after `--` nothing is ours.

    `takes` says of each of our options whether a value follows it.
    """
    own: list[str] = []
    left: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "--":
            left += rest
            break
        name, equals, _ = word.partition("=")
        if word[:2] in takes and word[2:].isdigit():  # -n8
            name, equals = word[:2], word[2:]
        if name not in takes:
            left.append(word)
            continue
        own.append(word)
        if takes[name] and not equals:
            own += itertools.islice(rest, 1)
    return own, left


def refuse_misspelt(script: str, words: Sequence[str], takes: Mapping[str, bool]) -> None:
    """Refuse an option that is close to one of ours: the script would get it in silence.

    Raises:
        click.UsageError: with the option that was meant.
    """
    for word in split_words(words[: words.index("--")] if "--" in words else words, takes)[1]:
        name = word.partition("=")[0]
        meant = difflib.get_close_matches(name, takes, n=1, cutoff=_NEAR) if name.startswith("--") else []
        if meant:
            raise click.UsageError(
                f"there is no option {name}; did you mean {meant[0]}? If it is the script's: "
                f"matex submit ... {script} -- {name} ..."
            )
