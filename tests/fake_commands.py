"""Stand-ins for the commands of schedulers: each notes how it was called, and answers as a test says."""

from __future__ import annotations

import shlex
import stat
from pathlib import Path


class Fakes:
    """Commands in a folder. A body is of the shell; `next NAME` prints the file NAME.1 at first, then NAME.2, ..."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._calls = folder / "calls"
        self._calls.touch()

    def add(self, name: str, body: str) -> None:
        next_one = (
            f"next() {{ at={shlex.quote(str(self.folder))}/$1; n=$(($(cat $at.n 2> /dev/null || echo 0) + 1)); "
            "[ -e $at.$n ] || n=$((n - 1)); echo $n > $at.n; cat $at.$n; }"
        )
        path = self.folder / name
        note = f'printf "%s\\n" "{name} $*" >> {shlex.quote(str(self._calls))}'
        path.write_text(f"#!/bin/bash\n{next_one}\n{note}\n{body}\n")
        path.chmod(stat.S_IRWXU)

    def answers(self, name: str, *texts: str) -> None:
        for number, text in enumerate(texts, 1):
            (self.folder / f"{name}.{number}").write_text(text)

    @property
    def calls(self) -> list[str]:
        return self._calls.read_text().splitlines()
