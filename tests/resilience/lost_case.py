"""`python lost_case.py` in a folder of its own prints, writes and trains in the phases in which a rank is lost.

LOSE=PHASE:RANK:HOW, with LOST=FILE made where that happened: once in a run, however often it is started. HOW is the
name of a signal, "exit" (`os._exit(5)`) or "raise". The phase "caught" is a step whose errors are caught,
"late" comes after the end of the script, "teardown" where Python frees what there is, and
in "pool" a thread of a pool writes meanwhile. With ASKS=mpi the script asks MPI for its rank, with ASKS=1 the library.
"""

import colorsys
import concurrent.futures
import contextlib
import os
import posix  # the ranks' own view of files leaves it alone
import signal
import sys
import time


def is_lost(here):
    phase, rank, _ = os.environ.get("LOSE", "::").split(":")
    if phase != here or "matex_tf" not in sys.modules:
        return False
    from matex_tf.world import world  # `matex_tf.rank` would tell that the script knows of ranks

    if world.get_world().rank != int(rank) or "LOST" not in os.environ:
        return False
    return not posix.access(os.environ["LOST"], posix.F_OK)


def lose(here):
    if not is_lost(here):
        return
    how = os.environ["LOSE"].split(":")[2]
    posix.close(posix.open(os.environ["LOST"], os.O_CREAT | os.O_WRONLY))
    if how == "raise":
        raise ValueError("the script's own")
    if how == "exit":
        os._exit(5)
    os.kill(os.getpid(), getattr(signal, how))


log = open("log.txt", "w")  # noqa: SIM115 - neither flushed nor closed before the script ends
os.makedirs("old", exist_ok=True)
open("old/made.txt", "w").close()
if "matex_tf" in sys.modules and "ASKS" in os.environ:
    import matex_tf

    if os.environ["ASKS"] == "mpi":
        from mpi4py import MPI

        MPI.COMM_WORLD.Get_rank()
    else:
        matex_tf.rank()
print("begins")
lose("imports")
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

print("imported")
log.write("imported\n")
tf.keras.utils.set_random_seed(1)
x = np.random.default_rng(0).normal(size=(16, 4))
with open("data.txt", "w") as file:
    file.write("a part\n")
    file.flush()
    lose("data")
    file.write("the rest\n")
os.remove("old/made.txt")
os.rmdir("old")
print("data of shape", x.shape)
model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
history = model.fit(x, x[:, :1], batch_size=8, epochs=1, verbose=0).history
print(f"first loss {history['loss'][0]:.3f}")
if "caught" in os.environ.get("LOSE", ""):
    for number in range(4):
        with contextlib.suppress(Exception):
            lose("caught") if number == 3 else None
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x) - x[:, 1:2]) ** 2)
            gradients = tape.gradient(loss, model.trainable_variables)
            model.optimizer.apply_gradients(zip(gradients, model.trainable_variables))
log.write("trained once\n")
os.rename("data.txt", "moved.txt")
lose("between")
if "pool" in os.environ.get("LOSE", ""):

    def save():
        with open("pool.txt", "w") as file:
            for number in range(300):
                file.write(f"{number}\n")
                file.flush()
                time.sleep(0.01)

    saving = concurrent.futures.ThreadPoolExecutor(1).submit(save)
    time.sleep(0.2)
    lose("pool")
print("between")
history = model.fit(x, x[:, :1], batch_size=8, epochs=1, verbose=0).history
print(f"second loss {history['loss'][0]:.3f}")
log.write("trained twice\n")
lose("after")
if "matex_tf" in sys.modules:
    from matex_tf.runtime import shutdown

    shutdown.at_end.insert(0, lambda: lose("late"))
print("trained")
result = open("result.txt", "w")  # noqa: SIM115
result.write("first half\n")
result.flush()
lose("writing")
result.write(f"second half {history['loss'][0]:.3f}\n")
result.close()
log.close()
if "pool" in os.environ.get("LOSE", ""):
    saving.result()


class Late:
    """Python clears its modules, and so frees this, after the script and all exit functions."""

    def __init__(self):
        flags = os.O_CREAT | os.O_WRONLY
        self.work = [(posix.open, os.environ["LOST"], flags), (posix.kill, os.getpid(), signal.SIGKILL)]

    def __del__(self):
        for function, *arguments in self.work:
            function(*arguments)


if is_lost("teardown"):
    colorsys.late = Late()
print("written")
