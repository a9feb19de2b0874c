"""The end of a run, from the records of its ranks: whether exit code 0 is proved, and which error came first.

`launch.process` and `launch.restarts` call `read_end` after mpirun has ended. See `runtime.rank_records`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from matex_tf.runtime import rank_records
from matex_tf.runtime.rank_records import Record


@dataclass(frozen=True)
class RunEnd:
    """The records of a run after mpirun has ended."""

    records: list[Record]
    is_written: bool  # whether each process that writes the script's files has exited normally

    @property
    def has_begun(self) -> bool:
        """Whether a rank has begun to run the script."""
        return any(record.state for record in self.records)

    @property
    def has_reached_end(self) -> bool:
        """Whether all ranks have reached the end of the script together."""
        return any(record.state == rank_records.ENDED for record in self.records)

    @property
    def has_ended(self) -> bool:
        """Whether, in addition, all files are written."""
        return self.has_reached_end and self.is_written

    @property
    def is_proved(self) -> bool:
        """Whether exit code 0 of mpirun means success: the run has ended, or a process ran without other ranks."""
        return self.has_ended or any(record.state == rank_records.SEPARATE for record in self.records)

    @property
    def asks_again(self) -> bool:
        """Whether the run was asked to end and should be restarted later."""
        return any(record.asks_again for record in self.records)

    @property
    def is_announced(self) -> bool:
        """Whether the ranks have reported how they end."""
        return self.has_reached_end or self.is_proved or self.asks_again

    @property
    def cause(self) -> Record | None:
        """The record of the first error; None if there is none."""
        return min((record for record in self.records if record.text), key=lambda record: record.order, default=None)

    def has_chosen(self, code: int) -> bool:
        """Whether the script reached its end and passed `code` to `sys.exit`; mpirun then ends all ranks."""
        return any(code in record.codes for record in self.records)

    def has_failed(self, code: int) -> bool:
        """Whether the script itself failed with mpirun's exit code `code`, and would fail again.

        A code above 128 may also come from a killed rank, whose loss makes other ranks fail. It counts only if the
        rank that failed has chosen this code itself to end all ranks (`Record.aborts`).
        """
        failed = [record for record in self.records if record.text and not record.is_loss]
        return any(code <= 128 or record.aborts == code for record in failed)

    def correct_code(self, code: int) -> int:
        """mpirun's exit code `code`; if mpirun returned 0 although ranks aborted, the code of the first abort."""
        aborted = [record for record in self.records if record.aborts]
        if code != 0 or not aborted or self.is_proved:
            return code
        return min(aborted, key=lambda record: record.order).aborts


def read_end(folder: str | os.PathLike[str]) -> RunEnd:
    """Read the end of the run with this folder."""
    return RunEnd(rank_records.read_records(folder), rank_records.are_files_written(folder))
