"""Random scripts that make, read and remove files: a rank finds what the script alone does, wherever rank 0 is by then.

`python ahead_case.py FIRST LAST` tries the scripts of these seeds, each of some stretches between which ranks meet. Two
ranks are played by one process: rank 0 notes what it does, the other looks through its view, one of the two ahead.
"""

import builtins
import os
import random
import shutil
import sys
import tempfile

from matex_tf.files import journal, journal_reader, overlay, python
from matex_tf.files.view import View
from matex_tf.world import world

NAMES = ["a", "b", "folder", "folder/a", "folder/b", "folder/deep", "folder/deep/a", "other", "other/a"]


def random_step(chance):
    kind = chance.choice(list(KINDS))
    names = [chance.choice(NAMES) for _ in range(2)]
    return kind, names, str(chance.random())


def write(names, text):
    with builtins.open(names[0], "w") as file:
        file.write(text)


def append(names, text):
    with builtins.open(names[0], "a") as file:
        file.write(text)


def read(names, text):
    with builtins.open(names[0]) as file:
        return file.read()


def by_flags(names, text):
    handle = os.open(names[0], os.O_RDONLY)
    try:
        return os.read(handle, 100)
    finally:
        os.close(handle)


def move(names, text):
    if os.path.isfile(names[0]) and not os.path.isdir(names[1]):
        os.replace(*names)


KINDS = {
    "write": write,
    "append": append,
    "read": read,
    "read by flags": by_flags,
    "is there": lambda names, text: os.path.exists(names[0]),
    "is folder": lambda names, text: os.path.isdir(names[0]),
    "size": lambda names, text: os.path.isfile(names[0]) and os.stat(names[0]).st_size,
    "list": lambda names, text: sorted(os.listdir(names[0])),
    "scan": lambda names, text: sorted(entry.name for entry in os.scandir(names[0])),
    "remove": lambda names, text: os.remove(names[0]),
    "mkdir": lambda names, text: os.mkdir(names[0]),
    "makedirs": lambda names, text: os.makedirs(names[0], exist_ok=True),
    "rmtree": lambda names, text: shutil.rmtree(names[0]),
    "rmdir": lambda names, text: os.rmdir(names[0]),
    "move": move,
}


def done(step):
    kind, names, text = step
    try:
        return kind, names, KINDS[kind](names, text)
    except OSError:
        return kind, names, "an error"


class Player:
    """One process that runs the script in a folder."""

    def __init__(self, folder, functions):
        self.folder, self.functions = folder, functions
        self.seen = []
        self.met = 0

    def play(self, step):
        use(self.functions)
        os.chdir(self.folder)
        self.seen.append(done(step))


def installed():
    """Python's functions on files as they are alone and on rank 0, and as on another."""
    places = [*python.REPLACED, (tempfile, "mkdtemp")]
    sets = []
    for install in (lambda: None, python.install_view):
        install()
        sets.append({(owner, name): getattr(owner, name) for owner, name in places})
        use(sets[0])
    return sets


def use(functions):
    for (owner, name), function in functions.items():
        setattr(owner, name, function)


def tried(seed, sets):
    chance = random.Random(seed)
    base = os.path.realpath(tempfile.mkdtemp())
    for name in ("alone/folder/deep", "journal", "own"):
        os.makedirs(os.path.join(base, name))
    for name in ("a", "folder/a", "folder/deep/a"):
        with open(os.path.join(base, "alone", name), "w") as file:
            file.write(f"before {name}")
    shutil.copytree(os.path.join(base, "alone"), os.path.join(base, "ranks"))
    journal.make_file(os.path.join(base, "journal"))
    is_on_one_host = seed % 2 == 0  # else the journal is read as a file server gives it
    read, written = (journal.Journal(os.path.join(base, "journal"), is_on_one_host) for _ in range(2))
    overlay._view = View(os.path.join(base, "own"), read)
    alone = Player(os.path.join(base, "alone"), sets[0])
    first = Player(os.path.join(base, "ranks"), sets[0])
    other = Player(os.path.join(base, "ranks"), sets[1])
    who = [first]
    journal_reader.count_collectives = lambda: who[0].met
    written.start_writing()
    world.is_active = lambda: True
    try:
        for _ in range(chance.randrange(1, 5)):
            steps = [random_step(chance) for _ in range(chance.randrange(1, 8))]
            turns = [first] * len(steps) + [other] * len(steps)
            if chance.random() < 0.7:
                chance.shuffle(turns)
            at = {first: 0, other: 0}
            for player in turns:
                who[0], journal._writer = player, written if player is first else None
                player.play(steps[at[player]])
                at[player] += 1
            journal._writer = None
            for step in steps:
                alone.play(step)
            first.met += 1
            other.met += 1
            if not alone.seen == first.seen == other.seen:
                return alone.seen, first.seen, other.seen
    finally:
        journal._writer = None
        use(sets[0])
        os.chdir("/")
        shutil.rmtree(base)
    return None


if __name__ == "__main__":
    sets, wrong = installed(), 0
    for seed in range(*map(int, sys.argv[1:3])):
        found = tried(seed, sets)
        if found is not None:
            print(f"seed {seed}: alone, on rank 0, on the other:")
            for three in zip(*found):
                print("  ", *three if len(set(map(str, three))) > 1 else three[:1])
            wrong += 1
    print("wrong:", wrong)
    sys.exit(wrong > 0)
