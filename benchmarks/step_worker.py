"""One process whose steps benchmarks/step.py times: a plain loop that trains when it is told to.

It connects to the socket ADDRESS, tells its setting and, once warm, its number of parameters; then it reads
numbers of steps, runs them and answers with their seconds, until it reads 0.
"""

from __future__ import annotations

import argparse
import json
import socket
import time

import tensorflow as tf
from models import CASES
from training import prepared

WARM_UP = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("setting")
    parser.add_argument("address")
    parser.add_argument("--ranks", type=int, default=1, help="the batch is so many times that of the case")
    arguments = parser.parse_args()
    case = CASES[arguments.case]
    batch = arguments.ranks * case.batch

    model, data, step = prepared(case, 2 * batch)
    batches = tf.data.Dataset.from_tensor_slices(data).repeat().batch(batch)

    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(arguments.address)
        channel = connection.makefile("rw")

        def tell(answer) -> None:
            print(json.dumps(answer), file=channel, flush=True)

        tell(arguments.setting)
        to_do, seconds = WARM_UP, []
        for x, y in batches:
            start = time.perf_counter()
            rows = int(step(x, y))
            seconds.append(time.perf_counter() - start)
            if len(seconds) < to_do:
                continue
            if rows != case.batch:
                raise SystemExit(f"{rows} rows were computed in a step, {case.batch} were to be")
            tell(seconds)
            to_do, seconds = int(channel.readline()), []
            if to_do == 0:
                break
        tell(model.count_params())


if __name__ == "__main__":
    main()
