"""Streams and buffers: memory that is rewritten while somebody may still read it."""

from __future__ import annotations

from ...loops.overlap import AS_OF_0_5_21
from ..exhibit import Exhibit, case
from ..patch import Edit

CHAPTER = "streams and buffers"

pinned_buffer_rewritten = Exhibit(
    chapter=CHAPTER,
    name="pinned_buffer_rewritten",
    title="A pinned buffer that is rewritten before its copy has run",
    references=("mini-sglang #102", "mini-sglang #103", "vLLM #25279", "vLLM #31841"),
    symptom="An illegal memory access under overlap; with overlap off the same benchmark runs "
    "through (mini-sglang #102). In vLLM, with images, crashes now and then under sustained load "
    "(#31841).",
    here="All uploads are made from one pinned buffer. Step 1's upload of a's prompt is queued on "
    "the scheduler's stream. It is asynchronous: the host goes on, lays out step 2, and writes "
    "b's prompt into the same buffer. Nothing says that the first copy has run by then. In this "
    "run it has, since copies are quick and the stream is free; had it started late, a's row of "
    "the token pool would hold b's prompt.",
    cure="vLLM waits for an event behind the last step's copies before it writes to buffers that "
    "are used again (#25279), or has two buffers and takes them in turn (#31841). Here each step "
    "has host memory of its own, which its result holds until the copy has ended.",
    law="race",
    says="pinned",
    case=case("a: 4 -> 1; b at 1: 7 -> 1", "mini_overlap:token_pool", kv=3, rows=2),
    edits=(
        Edit(
            "relay.token_pool:TokenPool.upload",
            healthy="""\
    source, target = self.xp.asarray(tokens), self.xp.asarray(cells)
    self.recorder.program.touch("write", "pinned", [batch.step])
    touches = [Touch("read", "pinned", [batch.step]), Touch("write", "token pool", cells)]
""",
            bug="""\
    source, target = vars(self).setdefault("pinned", (self.xp.asarray([]), self.xp.asarray([])))
    source[:], target[:] = tokens, cells
    self.recorder.program.touch("write", "pinned", [0])
    touches = [Touch("read", "pinned", [0]), Touch("write", "token pool", cells)]
""",
        ),
    ),
)


IN_THE_FORWARD_PASS = """\
    step.flat, step.touches = flat, self.touches.declare(batch, flat)
"""


ON_THE_SCHEDULE_STREAM = """\
    table, flat = flat, replace(flat, table_index=[], table_slots=[])
    step.flat, step.touches = flat, self.touches.declare(batch, flat)
    at, slots, stream = table.table_index, table.table_slots, self.device.stream("schedule")
    touch = self.touches.inputs(batch)._replace(kind="write", resource="page table", cells=at)
    self.device.stream("forward").wait(stream.launch(
        self.page_table.__setitem__, self.device.xp.asarray(at), self.device.xp.asarray(slots),
        name="req_to_token", label=step.label, touches=[touch],
    ))
"""


BARRIER = ON_THE_SCHEDULE_STREAM.replace(
    "    touch =",
    """\
    if hasattr(self, "newest_forward"):
        stream.wait(self.newest_forward)  # _apply_war_barrier
    touch =""",
)


request_table_rewritten = Exhibit(
    chapter=CHAPTER,
    name="request_table_rewritten",
    title="A request table that is rewritten while a forward pass reads it",
    references=(
        "SGLang #26380",
        "SGLang #28363",
        "SGLang #31687",
        "SGLang #26646",
        "SGLang #27967",
    ),
    symptom="With overlap scheduling and prefill apart from decode, the score on gsm8k is lower in "
    "some runs than in others. Nothing fails, and every run by itself looks well. #26380 names "
    "two tables that are written while a forward pass reads them: the request table, and the "
    "index of the sliding window, to which it lays that score.",
    here="The table that says in which KV slots a request's tokens lie (req_to_token, here the "
    "page table) is on the device, and SGLang's scheduler writes it on a stream of its own. Step "
    "1 comes back with a's last token, while step 2 is in flight with a surplus row for a, and "
    "reads row 1 of the table. The row is free at once and given to b, whose slots are written to "
    "it on the schedule stream. b's step waits for that write; but nothing lets the write wait "
    "for step 2, which may then read, and write through, a row that is half a's and half b's. "
    "That step 3 comes after step 2 on the forward stream does not help: the table is not written "
    "there. In this run step 2 had read the row in time.",
    cure="#26380 lets the schedule stream wait for the forward stream before it writes "
    "(_apply_war_barrier). That serializes the two, so #28363 waits for an event behind the last "
    "read of the table instead, which comes before the pass itself where a graph is replayed. "
    "#31687 puts the barrier right behind the launch, since processing a result writes as well. "
    "It is on for CUDA alone (#26646), elsewhere if asked for (#27967). Here the forward pass "
    "fills the table itself, so that the order of its stream orders these writes too; with the "
    "barrier in the bug's place every law holds as well.",
    law="race",
    says="req_to_token of step 3",
    case=case(
        "a: 18 -> 1; b: 7 -> 1", "overlap:ring", kv=2, options=AS_OF_0_5_21, free_rule="at_once"
    ),
    edits=(
        Edit(
            "worker.worker:Worker.lay_out", healthy=IN_THE_FORWARD_PASS, bug=ON_THE_SCHEDULE_STREAM
        ),
    ),
    original_cure=(
        Edit("worker.worker:Worker.lay_out", healthy=IN_THE_FORWARD_PASS, bug=BARRIER),
        Edit(
            "worker.worker:Worker.queue",
            healthy="    step.launched.append(done)\n",
            bug="""\
    step.launched.append(done)
    if op.gives == "logits_output":
        self.newest_forward = done
""",
        ),
    ),
)


tensor_freed_under_kernel = Exhibit(
    chapter=CHAPTER,
    name="tensor_freed_under_kernel",
    title="An input whose memory is handed out while a kernel reads it",
    references=("SGLang #18744", "SGLang #18958", "SGLang #34076", "SGLang #2070", "SGLang #18803"),
    symptom="Under overlap alone, now and then: an index out of bounds on the device (#18744), or "
    "an illegal memory access (#2070).",
    here="The record of batches has one slot. Step 1 is running when the host has laid out step 2 "
    "and records it: step 1 falls out, nobody names its tensors any more, and their memory may be "
    "handed out again. Step 1's kernels have yet to read them, and no event orders the two. In "
    "this run nobody took the memory in time, so every token is right; only the order shows the "
    "bug. With an allocator that hands it out at once, tokens are wrong "
    "(tests/worker/test_generation_batch_result.py).",
    cure="Two slots in turn hold the newest batches, with every tensor that the forward stream "
    "reads (record_batch_in_overlap); or the tensor is told which stream reads it (record_stream, "
    "as in #34076, open). Where the allocator orders reuse by itself, as torch's default one "
    "happened to, nothing shows; #34076 saw 19 of 20 runs go wrong with another one. #18803 "
    "blamed the reuse of a row of the request table instead, and was turned down.",
    law="race",
    says="inputs",
    case=case("a: 7 -> 1", "overlap:pool", kv=2, options=AS_OF_0_5_21),
    edits=(
        Edit(
            "worker.worker:Worker.__init__",
            healthy="max(pins, depth) if pins",
            bug="1 if pins",
        ),
    ),
)
