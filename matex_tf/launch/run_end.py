"""How a run has ended, from the records that its ranks wrote: whether it succeeded, and which error came first.

mpirun may return 0 although ranks were lost, and another code after a success. A record (`runtime.rank_records.Record`)
is what one process reports of itself: how far it came (`state`), the message of its error (`text`), whether the error
is only the loss of another rank or host (`is_loss`), the exit code with which it aborts the run (`abort_code`), and a
key that sorts the cause of all errors first (`order`).
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
    are_files_written: bool  # whether each process that writes the script's files has exited normally

    @property
    def script_has_begun(self) -> bool:
        """Whether a rank has begun to run the script."""
        return any(record.state for record in self.records)

    @property
    def script_has_ended(self) -> bool:
        """Whether all ranks have reached the end of the script together."""
        return any(record.state == rank_records.ENDED for record in self.records)

    @property
    def is_complete(self) -> bool:
        """Whether the script has ended on all ranks, and all its files are written."""
        return self.script_has_ended and self.are_files_written

    @property
    def proves_success(self) -> bool:
        """Whether mpirun's exit code 0 means success: the run is complete, or a process ran without other ranks."""
        return self.is_complete or any(record.state == rank_records.SEPARATE for record in self.records)

    @property
    def asks_again(self) -> bool:
        """Whether the run was asked to end, has saved its state, and should be started again later."""
        return any(record.asks_again for record in self.records)

    @property
    def is_reported(self) -> bool:
        """Whether the ranks themselves report how the run ended, so that no other reason has to be found."""
        return self.script_has_ended or self.proves_success or self.asks_again

    @property
    def cause(self) -> Record | None:
        """The record of the first error; None if there is none."""
        return min((record for record in self.records if record.text), key=lambda record: record.order, default=None)

    def script_chose(self, code: int) -> bool:
        """Whether a rank reached the end of the script with exit code `code`, which is not 0."""
        return any(code in record.codes for record in self.records)

    def script_failed(self, code: int) -> bool:
        """Whether the script itself failed with mpirun's exit code `code`, and would fail again.

        A code above 128 may be that of a killed rank. Its loss makes other ranks fail, too. So such a code counts only
        if a failing rank has aborted the run with exactly this code.
        """
        failed_records = [record for record in self.records if record.text and not record.is_loss]
        return any(code <= 128 or record.abort_code == code for record in failed_records)

    def correct_code(self, code: int) -> int:
        """mpirun's exit code `code`; if mpirun returned 0 although ranks aborted, the code of the first abort.

        After a success the 0 stays: ranks may have continued without an aborted rank (`--elastic`).
        """
        aborted_records = [record for record in self.records if record.abort_code]
        if code != 0 or not aborted_records or self.proves_success:
            return code
        return min(aborted_records, key=lambda record: record.order).abort_code


def read_end(folder: str | os.PathLike[str]) -> RunEnd:
    return RunEnd(rank_records.read_records(folder), rank_records.are_files_written(folder))
