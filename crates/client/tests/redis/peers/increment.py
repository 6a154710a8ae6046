"""A Python program that locks with redis-py's own `Lock`, in the way of its users. It knows nothing of Tenure.

increment.py URL KEY increment FOLDER TIMES   takes turns at the counter that `tenure::contract::Inside` has in the folder
increment.py URL KEY hold TTL_MS              holds the lock until it reads a line, or the end of its input
increment.py URL KEY try                      whether the lock is to be had

It prints a word for each thing that has happened, on a line of its own.
"""

import os
import random
import sys
import time
from pathlib import Path

import redis
from redis.exceptions import LockNotOwnedError

TTL_S = 20
STAY_S = 0.002
# Whoever comes straight back leaves no room for those who look only now and then.
LONGEST_PAUSE_S = 0.02


def main(url, key, mode, *rest):
    client = redis.Redis.from_url(url)
    client.ping()
    if mode == "increment":
        folder, times = rest
        increment(client, key, Path(folder), int(times))
    elif mode == "hold":
        (ttl_ms,) = rest
        hold(client, key, int(ttl_ms) / 1000)
    elif mode == "try":
        try_once(client, key)
    else:
        sys.exit(f"`{mode}` is none of increment, hold, try")


def increment(client, key, folder, times):
    say("ready")
    for _ in range(times):
        # If the lock was lost meanwhile, the end of the block is an error.
        with client.lock(key, timeout=TTL_S):
            increment_inside(folder / "counter", folder / "inside")
        time.sleep(random.uniform(0, LONGEST_PAUSE_S))
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


def hold(client, key, ttl_s):
    lock = client.lock(key, timeout=ttl_s)
    say("ready")
    lock.acquire()
    say("held")
    sys.stdin.readline()
    try:
        lock.release()
        say("released")
    except LockNotOwnedError:
        say("lost")


def try_once(client, key):
    lock = client.lock(key, timeout=TTL_S)
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
