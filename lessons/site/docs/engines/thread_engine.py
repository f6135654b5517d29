"""An engine on a thread as its device; `minisched check` needs its lines with ``rec``.

    python thread_engine.py engine.json
    minisched check engine.json

It has a bug: one input buffer serves all steps, so the host writes the input of step n + 1 while
step n may still read its own. With ``NUM_BUFFERS = 2`` the engine is right.
"""

import queue
import sys
import threading
import time

from minisched.record import Recorder

NUM_BUFFERS = 1
RIDS = ("a", "b")
rec = Recorder()
jobs = queue.Queue()


def device():
    """Run what the host launches, in order."""
    rec.enter("forward")
    while job := jobs.get():
        op, cell, done = job
        with rec.run(op):
            rec.touch("read", "input buffer", [cell])
            time.sleep(0.004)
            rec.touch("write", "output buffer", [cell])
        done.set()


def launch(step):
    """Write a step's input, and queue the step."""
    cell, done = step % NUM_BUFFERS, threading.Event()
    with rec.host("prepare", step=step):
        time.sleep(0.001)
        rec.touch("write", "input buffer", [cell])
    with rec.host("launch", step=step):
        op = rec.launch("forward", step=step, rids=RIDS)
        jobs.put((op, cell, done))
    return step, op, cell, done


def process(step, op, cell, done):
    """Wait for a step, and send its tokens."""
    with rec.host("wait", step=step):
        done.wait()
        rec.wait(op)
    with rec.host("process", step=step):
        rec.touch("read", "output buffer", [cell])
        for rid in RIDS:
            rec.token(rid, 100 + step, step=step)


def main(path, num_steps=12):
    """Run one step ahead of the device: launch n + 1, then process n."""
    thread = threading.Thread(target=device)
    thread.start()
    newest = launch(1)
    for step in range(2, num_steps + 1):
        before, newest = newest, launch(step)
        process(*before)
    process(*newest)
    jobs.put(None)
    thread.join()
    rec.save(path, "thread engine", device="a thread")


if __name__ == "__main__":
    main(sys.argv[1])
