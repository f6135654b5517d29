"""Mutations of what lies around a step: devices, what is recorded, and what clients hear."""

from __future__ import annotations

from .mutation import mutation as m

FRONTEND, ENGINE = "engine.frontend:Frontend.", "engine.engine:Engine."
STREAM, METRICS = "devices.sim_stream:SimStream.", "engine.metrics:"
CUDA = "devices.cuda:"

# fmt: off
OUTSIDE = (
    # -- the simulated device ----------------------------------------------------------------------
    m("a stream goes on without what it waits for", "identity crash race",
      (STREAM + "wait", 'self.queue.append(("wait", op))', "pass")),
    m("what an op writes is seen while it runs", "",
      ("devices.sim_memory:SimMemory.__setitem__",
       "op.writes.setdefault(self, {}).update(writes)", "self.apply(writes, op.slice_id)"),
      equivalent="everybody who reads it has waited for its end: that is the law of races"),
    m("an op does not read what it has written itself", "identity",
      ("devices.sim_memory:SimMemory.__getitem__", "own = op.writes.get(self, {}) if op else {}",
       "own: dict[int, int] = {}")),
    m("a signal wakes nobody", "deadlock",
      ("devices.sim_op:SimSignal.set", "for callback in self.when_done:", "for callback in []:")),
    m("an op ends before it has begun", "time",
      (STREAM + "_finish", "self.device.record(self.name, op.name, op.start,",
       "self.device.record(self.name, op.name, op.start + op.cost + 1,")),
    m("waiting costs nothing and brings nothing", "race identity crash",
      ("devices.sim_op:SimOp.synchronize", "self.stream.device.run_until_done(self)", "pass")),
    # -- what is recorded --------------------------------------------------------------------------
    m("the host's waits are not recorded", "race",
      ("trace.program:Program.wait", "if op:", "if op and lane:")),
    m("an op's touches are recorded behind its end", "race",
      ("trace.program:Program.launch",
       '    self._touch(lane, op, touches)\n    self._act(lane, "end", op)\n',
       '    self._act(lane, "end", op)\n    self._touch(lane, op, touches)\n')),
    m("nobody says that a page is free again", "race leak ownership",
      ("worker.touches:Touches.free_pages", 'self.program.touch("free", place + KV, slots, rid)',
       "pass"),
      missed="no law holds what is said to be free against what is: a race fewer is found"),
    # -- torch's devices ---------------------------------------------------------------------------
    m("a thread's wait for another stream is not recorded", "race",
      ("devices.thread:ThreadStream.wait",
       "self.device.recorder.program.wait(op.slice_id, self.name)", "pass"),
      device="thread"),
    m("what cannot run raises nothing", "identity client",
      ("devices.thread_op:ThreadOp.run", "self.error = without_frames(error)", "pass"),
      device="thread"),
    m("a CUDA op keeps none of its arguments", "lifetime race",
      (CUDA + "CudaOp.run", "self.named = fn, *args", "pass"),
      device="cuda"),
    m("a CUDA stream does not wait for what was shipped", "lifetime race",
      (CUDA + "CudaStream.launch", "self.stream.wait_stream(torch.cuda.current_stream())",
       "pass"),
      device="cuda"),
    m("a CUDA stream does not wait for another one's op", "lifetime race",
      (CUDA + "CudaStream.wait", "self.stream.wait_event(op.end)", "pass"),
      device="cuda"),
    m("the host does not wait for a CUDA op", "lifetime race",
      (CUDA + "CudaOp.synchronize", "self.end.synchronize()", "pass"),
      device="cuda"),
    # -- what comes in, and what clients hear ------------------------------------------------------
    m("messages are taken in backwards", "order abort ends",
      (FRONTEND + "take", "self._said.popleft()", "self._said.pop()")),
    m("a request that is refused at the door is never heard of", "ends",
      (ENGINE + "recv_requests", "self._stream_output(outputs)", "pass")),
    m("whoever is hopeless is never told", "ends livelock",
      (ENGINE + "get_next_batch_to_run", "self._stream_output(self.scheduler.take_outputs())",
       "self.scheduler.take_outputs()"),
      missed="nobody who is drawn is alone and still too large: whoever is, is refused before"),
    m("of several outputs the last one is lost", "ends client",
      (ENGINE + "_stream_output", "for output in outputs:",
       "for output in outputs[:-1] or outputs:")),
    m("tokens are held back until somebody ends", "client",
      (ENGINE + "_stream_output",
       "for output in outputs:\n            self.frontend.deliver(output)",
       "self.held = getattr(self, 'held', []) + list(outputs)\n"
       "        if any(output.finish_reason for output in outputs):\n"
       "            for output in self.held:\n                self.frontend.deliver(output)\n"
       "            self.held = []")),
    m("an end is said before the token that ended it", "",
      (ENGINE + "_stream_output",
       "for output in outputs:\n            self.frontend.deliver(output)",
       "for output in sorted(outputs, key=lambda output: not output.finish_reason):\n"
       "            self.frontend.deliver(output)"),
      equivalent="a token and the end that it brings are one output; others are other requests'"),
    m("the tokens of a request are counted twice", "client",
      (METRICS + "RequestMetrics.on_token", "self.output_tokens += 1", "self.output_tokens += 2")),
    m("a request's cached tokens are all that it began with", "client",
      (METRICS + "Metrics.on_batch",
       "metrics.scheduled, metrics.cached_tokens = now, req.hit_len",
       "metrics.scheduled, metrics.cached_tokens = now, req.known_len")),
    m("whoever was refused is in no count", "client",
      (METRICS + "Metrics.on_received", "        self._end(req, metrics, now)\n        return\n",
       "        return\n")),
)
# fmt: on
