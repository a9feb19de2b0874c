"""Runs a program in a child of a server, as if it ran here.

    python warm_client.py SOCKETS COUNT OWNER SPENT [-m MODULE | SCRIPT] ARGUMENT...

SOCKETS is the path of a server's socket with INDEX where one of COUNT has its number; a rank takes that of its rank.
The program ends with the process OWNER; what it has computed becomes a line of the file SPENT.

Output, signals and exit code go through; where the client is killed, the program is.
"""

import contextlib
import json
import os
import resource
import signal
import socket
import struct
import sys

SIZE = struct.Struct("!I")
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)


def main(path, servers, owner, spent, arguments):
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)  # until it is known to whom they go
    rank = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("PMI_RANK") or "0"
    # Where a standard file is closed, the connection would take its number, and the program would get it and keep it.
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(path.replace("INDEX", str(int(rank) % servers)))
    job = {"arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd()}
    job |= {"owner": owner, "spent": spent, "client": os.getpid()}
    text = json.dumps(job).encode()
    text = SIZE.pack(len(text)) + text
    sent = socket.send_fds(connection, [text], [0, 1, 2])
    connection.sendall(text[sent:])
    child = read(connection)
    for number in PASSED_ON:
        signal.signal(number, lambda number, _: pass_on(child, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    status = read(connection)
    if os.WIFSIGNALED(status):
        if os.WTERMSIG(status) != signal.SIGKILL:
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program has left its own
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status))


def pass_on(child, number):
    with contextlib.suppress(ProcessLookupError):  # it has just ended, and its status comes next
        os.kill(child, number)


def read(connection):
    data = b""
    while len(data) < SIZE.size:
        more = connection.recv(SIZE.size - len(data))
        if not more:
            os._exit(97)  # the server is gone
        data += more
    return SIZE.unpack(data)[0]


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:5], sys.argv[5:])
