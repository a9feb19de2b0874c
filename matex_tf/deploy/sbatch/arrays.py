"""The tasks of a job array (`--array=1-4`): folders such as `runs/train-1/task-2`, states and output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from matex_tf.deploy import run_folder
from matex_tf.deploy.job import ENDED, EXIT_UNKNOWN, FORGOTTEN, RUNNING, STUCK, WAITING, Job, State
from matex_tf.deploy.sbatch.job_script import TASK, parse_array


def make_folders(folder: Path, array: str) -> None:
    """Create the folders of the tasks, because Slurm does not create folders for output."""
    for number in parse_array(array):
        (folder / f"{TASK}{number}").mkdir()


def list_folders(folder: str) -> list[Path]:
    """The folders of a run's tasks, in the order of their numbers; [] if the run is not a job array."""
    folders = [path for path in Path(folder).glob(f"{TASK}*") if path.is_dir()] if folder else []
    return sorted(folders, key=lambda path: int(path.name.removeprefix(TASK)))


def combine_states(slurm_states: Mapping[str, State], folders: Sequence[Path]) -> State:
    """The state of an array, from Slurm's states of its tasks, and from the folders of tasks that Slurm has forgotten.

    The array has ended once all its tasks have ended or are forgotten. Its exit code is then the first nonzero exit
    code of a task, in the order of task numbers.
    """
    states_by_task: dict[int, State] = {}
    for task_range, state in slurm_states.items():
        states_by_task |= dict.fromkeys(parse_array(task_range), state)  # Slurm lists waiting tasks as one range
    for folder in folders:
        number = int(folder.name.removeprefix(TASK))
        if number not in states_by_task:
            forgotten_state = State(FORGOTTEN, "not known to Slurm")
            states_by_task[number] = run_folder.add_exit_code(Job(str(number), str(folder)), forgotten_state)
    # The words of a running task also name its nodes, which the counts leave out.
    word_counts = Counter(
        state.words.partition(" ")[0] if state.phase == RUNNING else state.words for state in states_by_task.values()
    )
    words = ", ".join(f"{count} {word}" for word, count in word_counts.items())  # "2 RUNNING, 1 COMPLETED"
    phases = {state.phase for state in states_by_task.values()}
    for phase in (RUNNING, WAITING, STUCK):
        if phase in phases:
            return State(phase, words)
    # A task without a known exit code, such as a forgotten one, counts as failed.
    exit_codes = [
        EXIT_UNKNOWN if states_by_task[number].code is None else states_by_task[number].code
        for number in sorted(states_by_task)
    ]
    return State(ENDED, words, code=next((exit_code for exit_code in exit_codes if exit_code), 0))


def make_reader(folders: Sequence[Path]) -> Callable[[], bytes]:
    """A function that returns the tasks' output since its last call, each part after a line with the task's folder."""
    readers = {folder: run_folder.make_reader(str(folder)) for folder in folders}
    last_folder: Path | None = None
    ends_with_newline = True  # the text so far ends with a line end

    def read_more() -> bytes:
        nonlocal last_folder, ends_with_newline
        output = b""
        for folder, read_task in readers.items():
            if not (chunk := read_task()):
                continue
            if folder != last_folder:
                output += (b"" if ends_with_newline else b"\n") + f"==> {folder}\n".encode()
            output += chunk
            last_folder, ends_with_newline = folder, chunk.endswith(b"\n")
        return output

    return read_more
