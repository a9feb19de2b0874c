"""Messages of schedulers that refuse a job: their meaning, and the valid choices, such as the names of partitions."""

from __future__ import annotations

import getpass
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Refusal:
    """A reason for which a scheduler refuses a job."""

    sign: str  # the part of the scheduler's message that identifies the reason, in upper or lower case
    meaning: str
    choices: str = ""  # the plural noun for the valid choices, which `command` lists; "" if none are listed
    command: tuple[str, ...] = ()


def explain_refusal(program: str, text: str, refusals: Iterable[Refusal]) -> str:
    """The message `text` of `program` about a refused job, its meaning, and the valid choices."""
    message = f"{program}: {text or 'no number of a job, and no reason'}"
    for refusal in refusals:
        if refusal.sign.lower() in text.lower():
            choices = list_choices(refusal.command) if refusal.command else ""
            return f"{message}\nThat is: {refusal.meaning}." + (f" {refusal.choices} are: {choices}" if choices else "")
    return message


def list_choices(command: Sequence[str]) -> str:
    """The lines that a scheduler's command prints, separated by commas; "" if the command fails."""
    try:
        expanded_command = [argument.replace("$USER", getpass.getuser()) for argument in command]
        answer = subprocess.run(expanded_command, capture_output=True, text=True, timeout=10, stdin=subprocess.DEVNULL)
    except (OSError, KeyError, subprocess.TimeoutExpired):  # KeyError: before Python 3.13, a user without a name
        return ""  # an optional addition to an error message
    return ", ".join(sorted(set(answer.stdout.splitlines()))) if answer.returncode == 0 else ""
