// A JavaScript program that locks with redlock on ioredis, in the way of its users. It knows nothing of Tenure.
//
// increment.mjs URL KEY increment FOLDER TIMES   takes turns at the counter that `tenure::contract::Inside` has in the folder
// increment.mjs URL KEY hold TTL_MS              holds the lock until it reads a line, or the end of its input
// increment.mjs URL KEY try                      whether the lock is to be had
//
// It prints a word for each thing that has happened, on a line of its own.

import { closeSync, constants, openSync, readSync, unlinkSync, writeFileSync, writeSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

// Its packages are not beside it, but where `cargo xtask test --only peers` has put them. That is ioredis 5, since 6 does not run
// on the node of Debian 12.
const require = createRequire(new URL("../../../../../target/peers/node/", import.meta.url));
const { Redis } = require("ioredis");
const { default: Redlock, ExecutionError, ResourceLockedError } = require("redlock");

const TTL_MS = 20_000;
const STAY_MS = 2;
// Whoever comes straight back leaves no room for those who look only now and then.
const LONGEST_PAUSE_MS = 20;
// For the acquire alone: a release that is told to go on forever does so if the lock is lost.
const UNTIL_GOT = { retryCount: -1 };

async function main(url, key, mode, ...rest) {
  const redis = new Redis(url);
  const redlock = new Redlock([redis]);
  await redis.ping();
  if (mode === "increment") {
    const [folder, times] = rest;
    await increment(redlock, key, folder, Number(times));
  } else if (mode === "hold") {
    const [ttlMs] = rest;
    await hold(redlock, key, Number(ttlMs));
  } else if (mode === "try") {
    await tryOnce(redlock, key);
  } else {
    throw new Error(`\`${mode}\` is none of increment, hold, try`);
  }
  await redlock.quit();
}

async function increment(redlock, key, folder, times) {
  say("ready");
  for (let done = 0; done < times; done += 1) {
    const lock = await redlock.acquire([key], TTL_MS, UNTIL_GOT);
    await incrementInside(join(folder, "counter"), join(folder, "inside"));
    // If the lock was lost meanwhile, this is an error.
    await lock.release();
    await sleep(Math.random() * LONGEST_PAUSE_MS);
  }
  say("finished");
}

// Two steps, which lose an increment if anybody else is inside too.
async function incrementInside(counter, mark) {
  try {
    writeFileSync(mark, String(process.pid), { flag: "wx" });
  } catch (error) {
    throw error.code === "EEXIST" ? new Error(`somebody else is inside: ${mark} exists`) : error;
  }
  const file = openSync(counter, constants.O_RDWR | constants.O_CREAT, 0o644);
  const count = Buffer.alloc(8);
  readSync(file, count, 0, 8, 0);
  await sleep(STAY_MS);
  count.writeBigUInt64LE(count.readBigUInt64LE() + 1n);
  writeSync(file, count, 0, 8, 0);
  closeSync(file);
  unlinkSync(mark);
}

async function hold(redlock, key, ttlMs) {
  say("ready");
  const lock = await redlock.acquire([key], ttlMs, UNTIL_GOT);
  say("held");
  await aLineOrTheEnd(process.stdin);
  say((await isDone(lock.release())) ? "released" : "lost");
}

async function tryOnce(redlock, key) {
  let lock;
  const got = await isDone(redlock.acquire([key], TTL_MS, { retryCount: 0 }).then((it) => (lock = it)));
  if (got) {
    await lock.release();
  }
  say(got ? "got" : "busy");
}

// False if Redis has answered that the key is somebody else's. All else that goes wrong goes wrong here, too.
async function isDone(operation) {
  try {
    await operation;
    return true;
  } catch (error) {
    if (!(error instanceof ExecutionError)) {
      throw error;
    }
    const attempts = await Promise.all(error.attempts);
    const reasons = attempts.flatMap((attempt) => [...attempt.votesAgainst.values()]);
    const unexpected = reasons.find((reason) => !(reason instanceof ResourceLockedError));
    if (unexpected) {
      throw unexpected;
    }
    return false;
  }
}

async function aLineOrTheEnd(input) {
  for await (const text of input) {
    if (text.includes("\n")) {
      break;
    }
  }
}

function say(word) {
  console.log(word);
}

const words = process.argv.slice(2);
if (words.length < 3) {
  console.error("increment.mjs: its first lines say what its arguments are");
  process.exit(1);
}
// Ended at once, since a client that is still connected would keep it alive.
main(...words).then(
  () => process.exit(0),
  (error) => {
    console.error("increment.mjs:", error);
    process.exit(1);
  },
);
