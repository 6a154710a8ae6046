"""A Python program that locks with kazoo's own recipes, in the way of their users. It knows nothing of Tenure.

increment.py HOSTS PATH increment FOLDER TIMES   takes turns at the counter that `tenure::contract::Inside` has in the folder
increment.py HOSTS PATH hold RECIPE              holds the lock until it reads a line, or the end of its input
increment.py HOSTS PATH try RECIPE               whether the lock is to be had

A recipe is `Lock`, `ReadLock` or `WriteLock`. It prints a word for each thing that has happened, on a line of its own.
"""

import os
import sys
import time
from pathlib import Path

from kazoo.client import KazooClient

# Of a session that nobody keeps alive: short, for those who wait until it is over.
TIMEOUT_S = 4
STAY_S = 0.002


def main(hosts, path, mode, *rest):
    client = KazooClient(hosts, timeout=TIMEOUT_S)
    client.start()
    if mode == "increment":
        folder, times = rest
        increment(client, path, Path(folder), int(times))
    elif mode == "hold":
        (recipe,) = rest
        hold(lock(client, path, recipe))
    elif mode == "try":
        (recipe,) = rest
        try_once(lock(client, path, recipe))
    else:
        sys.exit(f"`{mode}` is none of increment, hold, try")
    client.stop()


def lock(client, path, recipe="Lock"):
    return getattr(client, recipe)(path, f"kazoo {os.getpid()}")


def increment(client, path, folder, times):
    say("ready")
    for _ in range(times):
        with lock(client, path):
            increment_inside(folder / "counter", folder / "inside")
    say("finished")


def increment_inside(counter, mark):
    """Two steps, which lose an increment if anybody else is inside too."""
    try:
        with open(mark, "x") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        sys.exit(f"increment.py: somebody else is inside: {mark} exists")
    file = os.open(counter, os.O_RDWR | os.O_CREAT, 0o644)
    before = int.from_bytes(os.pread(file, 8, 0), "little")
    time.sleep(STAY_S)
    os.pwrite(file, (before + 1).to_bytes(8, "little"), 0)
    os.close(file)
    mark.unlink()


def hold(lock):
    say("ready")
    lock.acquire()
    say("held")
    sys.stdin.readline()
    lock.release()
    say("released")


def try_once(lock):
    if lock.acquire(blocking=False):
        lock.release()
        say("got")
    else:
        say("busy")


def say(word):
    print(word, flush=True)


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
