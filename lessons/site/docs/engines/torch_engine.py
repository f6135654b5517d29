"""An engine on torch: one stream computes, another one copies tokens to the host.

    python torch_engine.py engine.json
    minisched check engine.json

It has a bug: the copy does not wait for the forward pass, so it may copy old tokens. With
``COPY_WAITS = True`` the engine is right. Without a GPU the ops run immediately on the CPU; the order
that is missing is found all the same.
"""

import sys

import torch

from minisched.record_torch import TorchRecorder

COPY_WAITS = False
RIDS = ("a", "b")
on_gpu = torch.cuda.is_available()
where = "cuda" if on_gpu else "cpu"
rec = TorchRecorder()


def main(path, num_steps=12):
    """Launch step n + 1, then process step n."""
    forward = rec.stream("forward", torch.cuda.Stream() if on_gpu else None)
    copy = rec.stream("copy", torch.cuda.Stream() if on_gpu else None)
    weights = torch.randn(256, 256, device=where)
    state = torch.randn(2, 256, device=where)
    host = torch.empty(2, 2, dtype=torch.long, pin_memory=on_gpu)

    def launch(step):
        cell = step % 2
        with rec.host("launch", step=step):
            written = [("write", "output", f"{2 * cell}-{2 * cell + 1}")]
            with forward.op("forward", step=step, rids=RIDS, touches=written) as computed:
                tokens = (state @ weights.matrix_power(step)).argmax(-1)
            if COPY_WAITS:
                copy.wait(computed)
            read = [("read", "output", f"{2 * cell}-{2 * cell + 1}"), ("write", "host", [cell])]
            with copy.op("copy", step=step, touches=read) as copied:
                host[cell].copy_(tokens, non_blocking=True)
        return step, copied, cell, tokens  # kept until the copy has ended

    def process(step, copied, cell, tokens):
        with rec.host("wait", step=step):
            copy.synchronize(copied)
        with rec.host("process", step=step):
            rec.touch("read", "host", [cell])
            for rid, token in zip(RIDS, host[cell].tolist(), strict=True):
                rec.token(rid, token, step=step)

    newest = launch(1)
    for step in range(2, num_steps + 1):
        before, newest = newest, launch(step)
        process(*before)
    process(*newest)
    rec.save(path, "torch engine", device=where)


if __name__ == "__main__":
    main(sys.argv[1])
