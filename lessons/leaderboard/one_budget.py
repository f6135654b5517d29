"""One budget for each step: every running request decodes, and a small chunk of prompts is added."""

from __future__ import annotations

CHUNK = 48  # tokens of prompts in a step in which some request decodes


class Scheduler:
    def __init__(self):
        self.waiting, self.running = [], []
        self.chunked = None  # the prompt that is half computed

    def receive(self, req):
        self.waiting.append(req)

    def ended(self, req):
        for queue in (self.waiting, self.running):
            if req in queue:
                queue.remove(req)
        if self.chunked is req:
            self.chunked = None

    def next_batch(self, room):
        decodes = [req for req in self.running if room.may_run(req)]
        return self.prompts(room, len(decodes)), decodes

    def prompts(self, room, num_decodes):
        free, rows = room.free_pages - self.promised(room), room.free_rows
        left = room.prompt_tokens
        if num_decodes and room.may_cut:
            left = min(left - num_decodes, CHUNK)
        prompts = []
        if self.chunked and left > 0:
            left = self.add(prompts, self.chunked, left)
        while self.waiting and not self.chunked and left > 0 and rows > 0:
            req = self.waiting[0]
            need = -(-req.max_device_len // room.page_size)
            if need > free or (req.extend_len > left and not room.may_cut and prompts):
                break
            if not room.may_cut:
                left = max(left, req.extend_len)
            self.waiting.remove(req)
            left, free, rows = self.add(prompts, req, left), free - need, rows - 1
        return prompts

    def add(self, prompts, req, left):
        length = min(req.extend_len, left)
        self.chunked = req if length < req.extend_len else None
        if not self.chunked:
            self.running.append(req)
        prompts.append((req, length))
        return left - length

    def promised(self, room):
        holding = self.running + ([self.chunked] if self.chunked else [])
        whole = (-(-req.max_device_len // room.page_size) for req in holding)
        return sum(whole) - sum(map(room.pages_held, holding))


def loop(engine):
    last = None
    while True:
        engine.recv_requests()
        batch = engine.get_next_batch_to_run()
        step, delay = None, False
        if batch:
            delay = engine.must_delay_sample(batch)
            step = engine.run_batch(batch, delay_sample=delay)
        if last:
            engine.process_batch_result(last)
        elif not batch:
            engine.on_idle()
        if delay:
            engine.launch_batch_sample_if_needed(step)
        last = step
        yield
