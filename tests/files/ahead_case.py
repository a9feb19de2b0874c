"""Random scripts that make, read and remove files: a rank finds what the script alone does, wherever rank 0 is by then.

`python ahead_case.py FIRST LAST` tries the scripts of these seeds, each of some stretches between which ranks meet. Two
ranks are played by one process: rank 0 notes what it does, the other looks through its view, one of the two ahead.
"""

import builtins
import glob
import os
import random
import shutil
import stat
import sys
import tempfile

from matex_tf.files import journal, journal_reader, overlay, python
from matex_tf.files.view import View
from matex_tf.world import world

NAMES = ["a", "b", "folder", "folder/a", "folder/b", "folder/deep", "folder/deep/a", "other", "other/a"]
PLAYING, PLAIN = [None], [{}]
NAMES += ["link", "link/a", "link/deep", "folder/link", "folder/link/a", "other/link"]


def random_steps(chance, names):
    """Mostly one step. A rank that is behind may use a folder that rank 0 has removed."""
    kind = chance.choice(list(KINDS))
    names = [chance.choice(names) for _ in range(2)]
    then = {"keep entries": ["ask kept entries", "rmtree"], "work in": ["rmtree"]}
    return [(kind, names, str(chance.random())) for kind in [kind, *then.get(kind, [])]]


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


def link(names, text):
    os.symlink(os.path.relpath(names[1], os.path.dirname(names[0])), names[0])


def relink(names, text):
    """Replace `names[0]` by a link, as scripts do for the folder of the latest run."""
    link(["temporary", names[1]], text)
    try:
        os.replace("temporary", names[0])
    except OSError:
        os.remove("temporary")
        raise


def replace_by_temporary(names, text):
    os.makedirs(os.path.dirname(names[0]) or os.curdir, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=os.path.dirname(names[0]) or os.curdir, delete=False) as file:
        file.write(text)
    try:
        os.replace(file.name, names[0])
    except OSError:
        os.remove(file.name)
        raise


def use_temporary(names, text):
    """A temporary file that its closing removes."""
    with tempfile.NamedTemporaryFile("w", dir=names[0]) as file:
        found = os.path.dirname(file.name) == os.path.realpath(names[0]), os.path.isfile(file.name)
    return found, os.path.exists(file.name), sorted(os.listdir(names[0]))


def work_in(names, text):
    os.chdir(names[0])
    return os.path.basename(os.getcwd()), sorted(os.listdir())


def keep_entries(names, text):
    PLAYING[0].kept = sorted(os.scandir(names[0]), key=lambda entry: entry.name)


def ask_kept_entries(names, text):
    """What was kept, as it is now: an entry asks only once. Of a folder, without the size on this disk."""
    kept, PLAYING[0].kept = PLAYING[0].kept, []
    states = [(entry.name, entry.stat()) for entry in kept]
    return [(name, state.st_mode, stat.S_ISREG(state.st_mode) and state.st_size) for name, state in states]


def copy_tree(names, text):
    source, target = map(os.path.realpath, names)
    if not target.startswith(source):
        shutil.copytree(*names, symlinks=text < "0.5", dirs_exist_ok=text < "0.7")


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
    "replace": lambda names, text: os.replace(*names),
    "link": link,
    "hard link to what is there": lambda names, text: os.path.lexists(names[1]) and os.link(*names),
    "link to absolute": lambda names, text: os.symlink(os.path.abspath(names[1]), names[0]),
    "relink": relink,
    "replace by temporary": replace_by_temporary,
    "use temporary": use_temporary,
    "work in": work_in,
    "readlink": lambda names, text: os.path.basename(os.readlink(names[0])),
    "is link": lambda names, text: os.path.islink(names[0]),
    "resolve": lambda names, text: os.path.relpath(os.path.realpath(names[0])),
    "is same": lambda names, text: os.path.samefile(*names),
    "walk": lambda names, text: sorted((top, *map(sorted, inside)) for top, *inside in os.walk(names[0])),
    "glob": lambda names, text: sorted(glob.glob("*/*") + glob.glob(names[0] + "/*")),
    "copytree": copy_tree,
    "keep entries": keep_entries,
    "ask kept entries": ask_kept_entries,
}


def done(step):
    kind, names, text = step
    try:
        return kind, names, KINDS[kind](names, text)
    except shutil.Error:  # some files were not copied
        return kind, names, "errors of a tree"
    except OSError:
        return kind, names, "an error"


class Player:
    """One process that runs the script in a folder."""

    def __init__(self, folder, functions):
        self.folder, self.functions = folder, functions
        self.seen = []
        self.kept = []
        self.met = 0

    def play(self, step):
        os.chdir(self.folder)  # by the plain function: this process was there all the time, and may keep its cache
        use(self.functions)
        PLAYING[0] = self
        self.seen.append(done(step))
        if step[0] == "work in":
            os.chdir(self.folder)
        use(PLAIN[0])


def installed():
    """Python's functions on files as they are alone and on rank 0, and as on another."""
    places = [*python.REPLACED, (tempfile, "mkdtemp"), (tempfile, "_mkstemp_inner")]
    places.append((tempfile._TemporaryFileCloser, "close" if sys.version_info < (3, 12) else "cleanup"))
    sets = []
    for install in (lambda: None, python.install_view):
        install()
        sets.append({(owner, name): getattr(owner, name) for owner, name in places})
        use(sets[0])
    PLAIN[0] = sets[0]
    return sets


def use(functions):
    for (owner, name), function in functions.items():
        setattr(owner, name, function)


def save_for_all(name, text, players, written):
    """Rank 0 saves a file for both ranks, as `files.saving` does with a model."""
    alone, first, other = players
    use(alone.functions)
    for player in (alone, first):
        os.chdir(player.folder)
        try:
            write([name], text)
        except OSError as error:
            player.seen.append(type(error))
        else:
            player.seen.append(None)
    other.seen.append(first.seen[-1])
    if first.seen[-1] is None:
        written.mark_delivered(os.path.realpath(name))
        overlay._view.show_file(overlay._view.find_key(name))
    first.met += 1
    other.met += 1


def tried(seed, sets):
    chance = random.Random(seed)
    base = os.path.realpath(tempfile.mkdtemp())
    for name in ("alone/folder/deep", "journal", "own"):
        os.makedirs(os.path.join(base, name))
    for name in ("a", "folder/a", "folder/deep/a"):
        with open(os.path.join(base, "alone", name), "w") as file:
            file.write(f"before {name}")
    shutil.copytree(os.path.join(base, "alone"), os.path.join(base, "ranks"))
    journal_reader.make_file(os.path.join(base, "journal"))
    is_on_one_host = seed % 2 == 0  # else the journal is read as a file server gives it
    read, notes = (journal_reader.Notes(os.path.join(base, "journal"), is_on_one_host) for _ in range(2))
    written = journal.Journal(notes)
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
            names = chance.sample(NAMES, chance.choice([3, len(NAMES)]))  # of few names, steps meet earlier ones
            steps = [step for _ in range(chance.randrange(1, 12)) for step in random_steps(chance, names)]
            turns = [first] * len(steps) + [other] * len(steps)
            if chance.random() < 0.3:
                turns.reverse()  # rank 0 is behind, so that no note keeps the other from its cache
            elif chance.random() < 0.6:
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
            if chance.random() < 0.5:
                save_for_all(chance.choice(NAMES), str(chance.random()), (alone, first, other), written)
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
