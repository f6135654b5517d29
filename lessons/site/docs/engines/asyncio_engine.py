"""An engine in asyncio: one task schedules, one task for each client reads its tokens.

    python asyncio_engine.py engine.json
    minisched check engine.json

It has a bug: when a client leaves, its request ends, but its page is not freed. With
``FREES_ON_ABORT = True`` the engine is right.
"""

import asyncio
import sys
import time

from minisched.record import Recorder

FREES_ON_ABORT = False
MOST_TOKENS = {"a": 8, "b": 3, "c": 8}  # b's client leaves after 3 tokens
rec = Recorder()


class Engine:
    """Requests that run, each with one row and one page."""

    def __init__(self):
        self.running = {}  # by request: its row, which is its page as well
        self.queues = {rid: asyncio.Queue() for rid in MOST_TOKENS}
        self.leaving = set()

    def admit(self, rid, row):
        """Give a request a row and a page."""
        self.running[rid] = row
        rec.mark("row alloc", row=row, rid=rid)
        rec.mark("page alloc", rid=rid, row=row, pages=str(row))

    def end(self, rid, reason):
        """End a request, and free what it has."""
        row = self.running.pop(rid)
        rec.mark("finish", rid=rid, reason=reason)
        if reason == "length" or FREES_ON_ABORT:
            rec.mark("page free", pages=str(row))
        rec.mark("row free", row=row)
        self.queues[rid].put_nowait(None)

    async def schedule(self):
        """Run steps until no request is left; the pass runs on a thread of the executor."""
        loop, step = asyncio.get_running_loop(), 0
        while self.running:
            step += 1
            rids = tuple(self.running)
            with rec.host("launch", step=step, rids=rids):
                rec.mark("commit", step=step, rows=" ".join(map(str, self.running.values())))
                op = rec.launch("forward", step=step, rids=rids)
                future = loop.run_in_executor(None, self.forward, op)
            await future  # other tasks run meanwhile
            with rec.host("process", step=step):
                rec.wait(op)
                for rid in rids:
                    rec.token(rid, 100 + step, step=step)
                    self.queues[rid].put_nowait(100 + step)
                for rid in rids:
                    if rid in self.leaving or step == 8:
                        self.end(rid, "abort" if rid in self.leaving else "length")

    def forward(self, op):
        """Do the forward pass."""
        with rec.run(op):
            time.sleep(0.003)

    async def client(self, rid, most):
        """Read the tokens of a request; leave after ``most``."""
        rec.enter(f"{rid} thread")
        for count in range(1, most + 1):
            if await self.queues[rid].get() is None:
                return
            with rec.host("read"):
                if count == most < 8:
                    self.leaving.add(rid)


async def serve():
    """Run the scheduler and three clients."""
    engine = Engine()
    rec.mark("kv pool", page_size=16, pages=8)
    for row, rid in enumerate(MOST_TOKENS, 1):
        engine.admit(rid, row)
    clients = [engine.client(rid, most) for rid, most in MOST_TOKENS.items()]
    await asyncio.gather(engine.schedule(), *clients)


if __name__ == "__main__":
    asyncio.run(serve())
    rec.save(sys.argv[1], "asyncio engine", device="a thread")
