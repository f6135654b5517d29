"""Overlap scheduling in one file. ``python -m minisched.nano`` runs it and prints two timelines.

A language model generates one token per step. In each step the host (a Python program) schedules a
batch of requests, the device (a GPU) computes one token for each of them, and the host processes
these tokens. In the serial loop, host and device take turns. In the overlap loop, the host
processes step N-1 and schedules step N+1 while the device runs step N.

Five parts make that possible; each heading names the module that does the part in full. A
scheduler joins them, and two loops use it. Both give the tokens that each request gets alone.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import cycle

# -- 1. A device is a queue with a clock (devices/sim.py) ------------------------------------------
# The host adds an op and continues; it waits only where it asks for a result. Times are simulated.

SCHEDULE_MS, FORWARD_MS, PROCESS_MS = 4, 10, 3
Op = tuple[list[int], int]  # its value, and its end: the host may read the value from then on


class Device:
    """One queue of ops, which run in the order of their launch; times in milliseconds."""

    def __init__(self) -> None:
        self.host_time = 0  # when the host is done with its work so far
        self.device_time = 0  # when the device is done with its queue so far
        self.slices: list[tuple[str, int, int, int]] = []  # lane, step, start, end

    def host(self, phase: str, step: int, cost: int) -> None:
        """Let the host work."""
        self.slices.append((phase, step, self.host_time, self.host_time + cost))
        self.host_time += cost

    def launch(self, step: int, function: Callable[[], list[int]]) -> Op:
        """Queue an op: its value is computed now, but it counts only after ``wait``."""
        start = max(self.device_time, self.host_time)
        self.device_time = start + FORWARD_MS
        self.slices.append(("forward", step, start, self.device_time))
        return function(), self.device_time

    def wait(self, op: Op) -> list[int]:
        """Block the host until the op has ended, and return its value."""
        value, end = op
        self.host_time = max(self.host_time, end)
        return value


# -- 2. Memory in slots, and a model that reads them (memory/pool.py, models/hash.py) --------------
# A token's keys and values (KV) stay on the device, in a slot. A request's page table lists its
# slots in the order of positions. The model hashes each of them, so a scheduling mistake shows.


@dataclass(eq=False)
class Request:
    """A request: a prompt plus the tokens generated so far, and the memory that it holds."""

    prompt: list[int]
    max_new_tokens: int
    stop_token: int | None = None
    output_ids: list[int] = field(default_factory=list)  # the tokens that the host has processed
    page_table: list[int] = field(default_factory=list)  # the slot of each position
    computed_len: int = 0  # positions that launched steps compute
    future_slot: int = 0  # the slot of the FutureMap for its newest token
    steps_in_flight: int = 0  # launched and not processed
    finished: bool = False

    @property
    def max_len(self) -> int:
        """The largest number of tokens, prompt included."""
        return len(self.prompt) + self.max_new_tokens

    @property
    def remain_len(self) -> int:
        """For a running request: the tokens left to generate after the launched steps."""
        return self.max_len - self.computed_len - 1

    def input_ids(self, start: int, end: int) -> list[int]:
        """Return the tokens of these positions; minus a future slot for an unknown token."""
        known = (self.prompt + self.output_ids)[start:end]
        return known if len(known) == end - start else [*known, -self.future_slot]


def next_token(kv: Sequence[int], page_table: Sequence[int]) -> int:
    """Compute the token that follows the positions of a page table, from 1 to 50."""
    state = 7
    for position, slot in enumerate(page_table):
        state = (state * 31 + kv[slot] * (position + 3)) % 1_000_003
    return state % 50 + 1


# -- 3. Which prompts start (policy/prefill_adder.py) ----------------------------------------------
# A step computes at most ``chunk_size`` prompt tokens, so a long prompt is cut into chunks. A
# prompt starts only if memory is left after all that running requests may still generate.


class PrefillAdder:
    """Adds prompts to one batch, as long as tokens and memory are left."""

    def __init__(self, chunk_size: int, free_slots: int, running: Iterable[Request]) -> None:
        self.rem_chunk_tokens = chunk_size
        self.rem_total_tokens = free_slots - sum(req.remain_len for req in running)
        self.can_run: list[tuple[Request, int]] = []  # requests, and the tokens to compute

    def add(self, req: Request) -> bool:
        """Add a prompt or its next chunk; return whether its last token is in this batch."""
        needed = req.max_len - req.computed_len
        lacks_memory = needed > self.rem_total_tokens and not req.computed_len
        if not self.rem_chunk_tokens or lacks_memory:
            return False
        extend_len = min(len(req.prompt) - req.computed_len, self.rem_chunk_tokens)
        self.rem_chunk_tokens -= extend_len
        self.rem_total_tokens -= needed
        self.can_run.append((req, extend_len))
        return req.computed_len + extend_len == len(req.prompt)


# -- 4. Which requests decode (policy/decode.py) ---------------------------------------------------


class DecodeManager:
    """The set of running requests: their prompts are computed, and they have not finished."""

    def __init__(self) -> None:
        self.running: dict[Request, None] = {}  # a set that keeps the order of joining

    def next_batch(self) -> list[Request]:
        """Return the requests that can decode now: those with a token left to generate."""
        return [req for req in self.running if req.remain_len > 0]


# -- 5. A token that the host does not know (relay/future_map.py) ----------------------------------
# To schedule step N+1 the host needs to know that step N gives a token, not which one. It writes
# minus a future slot. On the device, step N stores its token there and step N+1 reads it.


class FutureMap:
    """A ring of slots on the device."""

    def __init__(self, size: int) -> None:
        self.tokens = [0] * (size + 1)
        self.next_slots = cycle(range(1, size + 1))  # without slot 0, because -0 is a token

    def resolve_future(self, input_ids: Iterable[int]) -> list[int]:
        """Replace each negative id by the token in its slot."""
        return [self.tokens[-token] if token < 0 else token for token in input_ids]

    def store_to_map(self, future_slot: int, token: int) -> None:
        """Store a token for the next step."""
        self.tokens[future_slot] = token


# -- The scheduler (scheduler/scheduler.py) --------------------------------------------------------


@dataclass
class Row:
    """One request's part of a batch; it keeps what was true when the scheduler committed it."""

    req: Request
    input_ids: list[int]
    page_table: list[int]  # the slots of all positions; the last ones are written in this step
    future_slot: int
    samples: bool  # False for a chunk that is not the last: its token has no meaning


class Scheduler:
    """Decides which requests run next, and what their tokens mean. Pure host code."""

    def __init__(self, reqs: Iterable[Request], num_slots: int, chunk_size: int) -> None:
        self.waiting = list(reqs)
        if (longest := max((req.max_len for req in self.waiting), default=0)) > num_slots:
            raise ValueError(f"num_slots is {num_slots}, but a request needs {longest}.")
        self.num_steps, self.chunk_size, self.decode = 0, chunk_size, DecodeManager()
        self.free_slots = list(range(num_slots))
        self.kv = [0] * num_slots  # on the device
        self.future_map = FutureMap(2 * len(self.waiting))  # for two steps in flight

    def next_batch(self) -> list[Row]:
        """Commit the next batch: prompts first, otherwise one token for each running request."""
        adder = PrefillAdder(self.chunk_size, len(self.free_slots), self.decode.running)
        while self.waiting and adder.add(self.waiting[0]):
            self.waiting.pop(0)
        work = adder.can_run or [(req, 1) for req in self.decode.next_batch()]
        self.num_steps += bool(work)
        return [self.commit(req, extend_len) for req, extend_len in work]

    def commit(self, req: Request, extend_len: int) -> Row:
        """Advance a request to where it is after this step; the next step needs no token for it."""
        start, end = req.computed_len, req.computed_len + extend_len
        input_ids = req.input_ids(start, end)
        req.page_table += [self.free_slots.pop(0) for _ in range(extend_len)]
        req.computed_len, req.future_slot = end, next(self.future_map.next_slots)
        req.steps_in_flight += 1
        if end == len(req.prompt):
            self.decode.running[req] = None
        return Row(req, input_ids, list(req.page_table), req.future_slot, end >= len(req.prompt))

    def forward(self, batch: list[Row]) -> list[int]:
        """Run a step, as the device does: read nothing of the host but the rows."""
        for row in batch:
            tokens = self.future_map.resolve_future(row.input_ids)
            for slot, token in zip(row.page_table[-len(tokens) :], tokens, strict=True):
                self.kv[slot] = token
            self.future_map.store_to_map(row.future_slot, next_token(self.kv, row.page_table))
        return [self.future_map.tokens[row.future_slot] for row in batch]

    def process(self, batch: list[Row], tokens: list[int]) -> None:
        """Give each request its token; release the memory of a finished one after its last step."""
        for row, token in zip(batch, tokens, strict=True):
            req = row.req
            req.steps_in_flight -= 1
            if row.samples and not req.finished:
                req.output_ids.append(token)
                is_last = len(req.output_ids) == req.max_new_tokens
                req.finished = is_last or token == req.stop_token
            if req.finished:
                self.decode.running.pop(req, None)
                if not req.steps_in_flight:  # until then a launched step still writes its slots
                    self.free_slots += req.page_table


# -- The two loops (loops/serial.py, loops/overlap.py) ---------------------------------------------
# They differ in one point: when the host waits for the tokens of a step.

Step = tuple[int, list[Row], Op]  # its number, its batch, its op


def launch_next(scheduler: Scheduler, device: Device) -> Step | None:
    """Schedule a step and launch it; return None if no request can run now."""
    number = scheduler.num_steps + 1
    batch = scheduler.next_batch()
    device.host("schedule", number, SCHEDULE_MS)
    op = device.launch(number, lambda: scheduler.forward(batch)) if batch else None
    return (number, batch, op) if op else None


def process(scheduler: Scheduler, device: Device, step: Step) -> None:
    """Wait for the tokens of a step, and process them."""
    number, batch, op = step
    tokens = device.wait(op)
    device.host("process", number, PROCESS_MS)
    scheduler.process(batch, tokens)


def serial(scheduler: Scheduler, device: Device) -> None:
    """Process each step before the next one is scheduled."""
    while step := launch_next(scheduler, device):
        process(scheduler, device, step)


def overlap(scheduler: Scheduler, device: Device) -> None:
    """Process step N-1 after step N is launched, while the device runs step N.

    A request that reaches its stop token in step N-1 is in step N already: that row is wasted.
    """
    last: Step | None = None
    while (step := launch_next(scheduler, device)) or last:
        if last:
            process(scheduler, device, last)
        last = step


# -- The proof and the picture (checks/oracle.py, export/scene_text.py) ----------------------------


def alone(req: Request) -> list[int]:
    """Generate the tokens of a request without scheduler, batch or FutureMap."""
    ids = list(req.prompt)
    while len(ids) < req.max_len and (len(ids) == len(req.prompt) or ids[-1] != req.stop_token):
        ids.append(next_token(ids, range(len(ids))))
    return ids[len(req.prompt) :]


def timeline(device: Device, width: int = 76) -> str:
    """Draw each lane as a line, a character for each millisecond: the last digit of the step."""
    lines = []
    for lane in ("schedule", "forward", "process"):
        cells = [" "] * width
        for name, step, start, end in device.slices:
            if name == lane:
                cells[start:end] = str(step % 10) * (min(end, width) - min(start, width))
        lines.append(f"{lane:>8} |{''.join(cells)}".rstrip())
    return "\n".join(lines)


def main() -> None:
    """Run four requests through both loops, print the timelines, and compare the tokens."""
    for loop in (serial, overlap):
        reqs = [Request([3 + i, 1, 4, 1, 5][: 2 + i], max_new_tokens=12) for i in range(4)]
        device, scheduler = Device(), Scheduler(reqs, num_slots=64, chunk_size=16)
        loop(scheduler, device)
        right = all(req.output_ids == alone(req) for req in reqs)
        print(f"{loop.__name__}: {device.host_time} ms; the tokens of each request alone: {right}")
        print(timeline(device), end="\n\n")


if __name__ == "__main__":
    main()
