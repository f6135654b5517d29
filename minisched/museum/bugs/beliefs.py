"""What the scheduler believes: lengths, counts and flags that are no longer true."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from ...checks.case import Case, same_on
from ...checks.judge import Finding, Verdict, judge
from ...checks.overlap import forwards, measure
from ...core import Request
from ...loops.overlap import AS_OF_0_5_21
from ..blame import at
from ..exhibit import STALE_BY_COUNT, Exhibit, case
from ..patch import Edit

CHAPTER = "what the scheduler believes"

chained_step_not_counted = Exhibit(
    chapter=CHAPTER,
    name="chained_step_not_counted",
    title="A chained step that the scheduler does not count",
    references=("SGLang #30093", "SGLang #30147", "SGLang #33874"),
    symptom="Nothing that was said in a long conversation is found in the cache in the next turn; "
    "and, seldom, one request's KV lies over another's (#30093).",
    here="Step 3 is chained upon step 2 without the scheduler: it takes no KV slot, and no length "
    "is advanced. Its row of the page table has nothing at that position, so it writes where the "
    "cell happens to point: into somebody else's KV, if there is somebody. And nobody waits for a "
    "step that was never counted: step 2 brings a's last token, and a's row is freed while step 3 "
    "still reads it.",
    cure="Open. #33874 (closed, not merged) commits a real slot and real lengths for every chained "
    "step; #30147 (open) only keeps what was never committed out of the pool. In SGLang decoding "
    "itself stays right, because MLX keeps each request's KV in arrays of its own, and only the "
    "shared pool suffers (#30093). Here the pool is all there is, and a chained step is committed "
    "as every other.",
    law="ownership",
    says="step 3 computes a's position 2, but a holds pages for 2 positions only",
    case=case("a: 4 -> 2", "mlx_async:chain", kv=3),
    edits=(
        Edit(
            "scheduler.scheduler:Scheduler.chain",
            healthy="""\
    return self.commit(Plan([], batch.reqs))
""",
            bug="""\
    self.leases.launched_step += 1
    starts, ids = [start + 1 for start in batch.starts], [(None,)] * len(batch.reqs)
    rest = batch.reqs, batch.leases, starts, ids, batch.delivers
    return ScheduleBatch(self.step, batch.mode, 0, *rest)
""",
        ),
    ),
    points_at=at(
        "forward 3, process 2",
        "step 3 has no slot to write to, and a's row is freed under it: nobody has counted it",
    ),
)


def hits_as_on_serial(case: Case) -> Verdict:
    """The general laws, and: what a request finds in the cache does not depend on the loop.

    On the serial loop no step is in flight when a request ends, so nothing can be counted early.
    """
    verdict, serial = judge(case), judge(same_on(case, "serial"))
    for here, there in zip(verdict.workload.requests, serial.workload.requests, strict=True):
        if here.hit_len != there.hit_len:
            sentence = (
                f"{here.rid} found {here.hit_len} cached positions, but on the serial loop "
                f"{there.hit_len}"
            )
            return replace(verdict, findings=(*verdict.findings, Finding("hits", sentence)))
    return verdict


committed_length_inflated = Exhibit(
    chapter=CHAPTER,
    name="committed_length_inflated",
    title="A wasted row that counts as computed",
    references=("SGLang #24590", "SGLang #24745"),
    symptom="A request that goes on where another one ended finds one cached token more than it "
    "should: seqlen, and not seqlen - 1 (#24590).",
    here="Step 2 is committed for a while step 1 runs, and with it a's computed length. Step 1 "
    "brings a's last token. Step 2's row is wasted, but its position counts as computed, and goes "
    "to the prefix cache while step 2 is still writing it. So b finds two cached positions. On a "
    "loop with no step in flight it finds one. The tokens are right: step 2 really did compute "
    "that position, and b's step comes behind it.",
    cure="#24745 (closed, not merged) takes the position off again when the end is seen, if "
    "overlap is on. Here only what has come back counts (settled_len), so a step in flight cannot "
    "add to it.",
    law="hits",
    says="but on the serial loop",
    case=case("a: 4 -> 1; b: 4 5 12 -> 1", "overlap:pool", kv=4, options=AS_OF_0_5_21),
    edits=(
        Edit(
            "memory.prefix_cache:PrefixCache.cache_finished_req",
            healthy="    self.cache_unfinished_req(req, lease)\n",
            bug="""\
    lease.settled_len = min(req.computed_len, req.known_len)
    self.cache_unfinished_req(req, lease)
""",
        ),
    ),
    judge_by=hits_as_on_serial,
    points_at=at(
        "process 1, forward 2",
        "a's end is processed while step 2 runs, and step 2's position goes to the cache with the "
        "rest",
    ),
)


discard_with_nothing_in_flight = Exhibit(
    chapter=CHAPTER,
    name="discard_with_nothing_in_flight",
    title="A discard flag with nothing in flight",
    references=("vLLM #42043", "vLLM #42117", "vLLM #48245"),
    symptom="After pause_generation and the clearing of the cache, every running request lacks one "
    "token: the first one after it is resumed (vLLM #42043). The rest is shifted by one place.",
    here="The pipeline is drained before each schedule (depth 1), so b is preempted with nothing "
    "in flight. The flag to discard its next output is set all the same. b starts again with step "
    "5, which samples 5, its fourth token. That is the next output to come, and so it is thrown "
    "away. Step 6 goes on behind it on the device, and b has 7 for its fourth token.",
    cure="#42117 counts what is in flight when it preempts (its output placeholders), and discards "
    "so many: none, if there are none. Later #48245 did away with discarding.",
    law="identity",
    says="b gave [0, 4, 18, 7], alone",
    case=case(
        "a: 16 -> 4; b: 16 -> 5",
        "vllm_async:pool",
        kv=6,
        rows=2,
        eos={7},
        options={"depth": 1},
        run_first="unified",
    ),
    edits=(
        Edit(
            "core.request:Request.restart",
            healthy="self.num_stale_output_tokens = self.num_in_flight_tokens",
            bug="self.num_stale_output_tokens = 1",
        ),
        STALE_BY_COUNT,
        Edit(
            "policy.waiting:WaitingQueue.add",
            healthy="if req.num_stale_output_tokens:",
            bug="if req.num_in_flight_tokens:",
        ),
        Edit(
            "scheduler.scheduler:Scheduler._came_back",
            healthy="if not req.finished:",
            bug="if not req.finished and req.lease is None:",
        ),
    ),
)


def it_overlaps(case: Case) -> Verdict:
    """The general laws, and: some of the host's work is hidden behind the device."""
    verdict = judge(case)
    report = measure(verdict.trace)
    if report.host_hidden_ns:
        return verdict
    sentence = (
        f"the host worked for {report.host_busy_ns / 1e6:g} ms, never while the device did, "
        f"which idled for {report.bubble_ns / 1e6:g} ms"
    )
    return replace(verdict, findings=(*verdict.findings, Finding("overlap", sentence)))


finalized_first = Exhibit(
    chapter=CHAPTER,
    name="finalized_first",
    title="An overlap loop that never overlaps",
    references=("vllm-omni #4442", "SGLang #22114", "SGLang #22416"),
    symptom="Overlap is switched on, yet the trace looks serial: each launch comes only when the "
    "step before it has been sampled, read and delivered (vllm-omni #4442).",
    here="The loop reads a step before it launches the next one. So there is never more than one "
    "graph in flight, and whenever the host works, the device has nothing to do. Every token is "
    "right; only the times show it. (As soon as a has ended there is no chained step at all; "
    "below, it is on its way while step 2 is read.)",
    cure="The next step is launched first, on tokens that nobody has computed yet, and only then "
    "is the last one read: SGLang's MLX backend since #22416 "
    "(scheduler_mixin.py:event_loop_overlap_mlx), which closed #22114. The order above is "
    "nobody's published one; it is the shortest way to what the report shows.",
    law="overlap",
    says="never while the device did",
    case=case("a: 4 -> 2", "mlx_async:chain", kv=3),
    edits=(
        Edit(
            "loops.mlx_async:mlx_async",
            healthy="""\
        if not unsafe:
            pending_next = _launch_chained(engine, tp_worker, pending_curr)
        if chain_extend and not (unsafe or pending_next):
            pending_next = _launch_behind(engine, tp_worker, pending_curr)
        _finalize_mlx_pending_job(engine, tp_worker, pending_curr)  # the device runs the next one
""",
            bug="""\
        _finalize_mlx_pending_job(engine, tp_worker, pending_curr)
        if not unsafe:
            pending_next = _launch_chained(engine, tp_worker, pending_curr)
        if chain_extend and not (unsafe or pending_next):
            pending_next = _launch_behind(engine, tp_worker, pending_curr)
""",
        ),
    ),
    judge_by=it_overlaps,
    points_at=at(
        "wait 2, process 2",
        "the host waits for step 2 and processes it with nothing else on the device",
    ),
)


late_token_of_retracted = Exhibit(
    chapter=CHAPTER,
    name="late_token_of_retracted",
    title="A preempted request's late token is taken for its next",
    references=("vLLM #38624", "vLLM #48245"),
    symptom="A request that was preempted says the same token twice when it goes on.",
    here="Step 5 is in flight with b in it when b is preempted: everything that was computed of it "
    "is forgotten, and it is to begin again with the four tokens that are known. Step 5 comes "
    "back with 16. Nobody asks under which lease it ran, so it is appended as b's fourth token. "
    "But b's length was set before: it begins again with four positions and computes the fourth "
    "token once more. b says 16, 16.",
    cure="#38624 (closed) wanted to set the discard flag and clear the placeholders wherever a "
    "request is preempted, and not only where the cache is reset. #48245 let the token be "
    "delivered and counted at once. Here a row counts only under the lease that it was launched "
    "with; for the loops after vLLM (keep_stale_outputs), stale output is delivered and moves the "
    "length too.",
    law="identity",
    says="alone it gives",
    case=case(
        "a: 4 -> 5; b: 4 -> 5",
        "vllm_async:prev_sampled",
        kv=9,
        rows=2,
        rules="sglang",
        disable_radix_cache=True,
        schedule_conservativeness=0.0,
    ),
    edits=(
        Edit(
            "scheduler.scheduler:Scheduler.process",
            healthy="if req.lease is not lease:",
            bug="if req.finished:",
        ),
    ),
)


live_last_chunk_flag = Exhibit(
    chapter=CHAPTER,
    name="live_last_chunk_flag",
    title="A flag that is read when the result comes back",
    references=("MindIE-LLM #233",),
    symptom="What a prompt's middle chunk samples is delivered as if it were a token of the "
    "answer.",
    here="The prompt of a is computed in two chunks. Step 1 computes the first one, and what it "
    "samples means nothing. While it runs, the scheduler commits the second chunk as step 2, and "
    "from then on a is not in the middle of its prompt any more. Step 1 comes back, somebody asks "
    "now whether it was the last chunk, and the answer is yes: its sample is delivered, and a, "
    "which wanted one token, ends with it.",
    cure="Commit 90669ea takes the flag with the step when it is launched, and reads that. Here "
    "each row of a batch says whether its token counts (deliver), and is never changed.",
    law="identity",
    says="alone it gives",
    case=case("a: 7 3 -> 1", "mindie_plugin", kv=3, chunked_prefill_size=1),
    edits=(
        Edit(
            "scheduler.scheduler:Scheduler.process",
            healthy="        elif deliver:\n",
            bug="        elif self.prefill.chunked_req is not req:\n",
        ),
    ),
    points_at=at(
        "forward 1, process 1",
        "step 1 computed a chunk that is not the last, but is asked about only when step 2 has "
        "been committed",
    ),
)


missing_early_commit = Exhibit(
    chapter=CHAPTER,
    name="missing_early_commit",
    title="A result that nobody takes in before the next step",
    references=("SGLang #25361", "SGLang #24082"),
    symptom="On the decode side of PD separation, with speculation and a grammar, masks lack the "
    "newest tokens, and results pile up in their queue: event_loop_overlap_disagg_decode lacks a "
    "guard that SGLang's ordinary overlap loop has (SGLang #25361).",
    here="The guard is taken out of the ordinary loop. Step 2 would be one with drafts and a "
    "grammar, and needs step 1's token for its mask: overlap is off for it. So step 1's result is "
    "to be taken in before step 2 is launched, and not after it. The part before is missing. Step "
    "2's mask is built without step 1's token; and as every step turns overlap off for the next "
    "one, nobody takes anything in. When nothing is left to launch, one result is taken, and the "
    "rest stays in the queue for ever.",
    cure="Where overlap is off for a batch, the pending result is popped and processed before that "
    "batch is launched, so that its mask is built from every token in front and the queue is "
    "empty: #24082, which was merged; #25361 was closed.",
    law="livelock",
    says="every request must end",
    case=case(
        "a: 7 -> 1",
        "overlap:pool",
        kv=3,
        vocab_size=100,
        options=AS_OF_0_5_21,
        wishes={"regex": "[abc]+"},
        speculative_algorithm="NGRAM_GPU",
        speculative_num_draft_tokens=1,
    ),
    edits=(
        Edit(
            "loops.overlap:overlap",
            healthy="""\
            engine.process_batch_result(result_queue.popleft())
        if batch:
""",
            bug="""\
        if batch:
""",
        ),
    ),
    points_at=at(
        "launch 2, copy 2",
        "step 2 is launched before step 1's result is taken in, and its own result is never taken "
        "in",
    ),
)


one_frame_discarded = Exhibit(
    chapter=CHAPTER,
    name="one_frame_discarded",
    title="Exactly one output is discarded",
    references=("vLLM #47900", "vLLM #48245"),
    symptom="EngineCore dies with assert num_output_placeholders >= 0, under memory pressure with "
    "async scheduling: output in flight at a preemption comes back to counters that have begun "
    "anew (vLLM #47900). That pull request throws exactly one output away for it. With more than "
    "two steps in flight, as with pipeline parallelism, that is one too few (vLLM #48245), and "
    "the request repeats or swaps tokens.",
    here="There is no page left for b's next step. As the newest, it is preempted itself, with "
    "steps 3 and 4 in flight. Its output in flight is marked to be thrown away, all of it as one: "
    "what comes back first clears the mark. Step 3 comes back: its token, 16, is thrown away, and "
    "b is free to start again. Step 5 computes what is known of b and samples 16 again. Step 4 "
    "comes back before it. Nothing says that it is from before the preemption, so its token, 4, "
    "is taken for the third, and the 16 behind it for the fourth. With two steps in flight there "
    "is never more than one to throw away, and the flag is right.",
    cure="#47900 (closed, not merged) counted at most one output in flight. #48245, which was "
    "merged, marks everything that is in flight as stale and lets each step that comes back drain "
    "its share; the request is not resumed before. And stale tokens are delivered: they were "
    "computed before anything was taken away.",
    law="identity",
    says="alone it gives",
    case=case(
        "a: 8 -> 3; b: 9 -> 5",
        "vllm_async:pool",
        kv=7,
        rows=2,
        options={"depth": 3},
        rules="sglang",
        run_first="unified",
    ),
    edits=(
        Edit(
            "scheduler.output_processor:drain",
            healthy="            req.num_stale_output_tokens -= len(ids)\n",
            bug="            req.num_stale_output_tokens = 0\n",
        ),
        STALE_BY_COUNT,
    ),
)


@contextmanager
def addresses(of: Mapping[str, int]) -> Iterator[None]:
    """Requests hash as if they lay there; by default they hash by their real address."""

    def address(req: Request) -> int:
        return of[req.rid]

    Request.__hash__ = address  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        del Request.__hash__


def ranks_agree(case: Case) -> Verdict:
    """The general laws, and: two ranks run the same rows in the same order.

    The ranks are two runs that differ only in where their requests lie in memory.
    """
    rids = [req.rid for req in case.workload.requests]
    ranks = []
    for order in (rids, rids[::-1]):
        with addresses({rid: at for at, rid in enumerate(order)}):
            ranks.append(judge(case))
    for one, other in zip(*(forwards(rank.trace) for rank in ranks), strict=False):
        if one.rids != other.rids:
            sentence = (
                f"step {one.step} runs {' '.join(one.rids)} on rank 0, "
                f"and {' '.join(other.rids)} on rank 1"
            )
            return replace(ranks[0], findings=(*ranks[0].findings, Finding("ranks", sentence)))
    return ranks[0]


ranks_disagree = Exhibit(
    chapter=CHAPTER,
    name="ranks_disagree",
    title="Two ranks that run one batch in two orders",
    references=("mini-sglang #113",),
    symptom="With tensor parallelism the tokens are wrong now and then; one GPU alone is always "
    "right.",
    here="The running requests are a set, and a decode batch is the list of it. A set of plain "
    "objects is in the order of their addresses, which each process has its own. Here two ranks "
    "run the same requests, and differ only in that: rank 0 puts a first, rank 1 puts b first. "
    "Each alone gives the right tokens; but each computes a part of every row, and the parts of "
    "different rows are added up.",
    cure="mini-sglang #113 sorts the requests by their ids when it makes a batch. Here they are "
    "keys of a dict, in the order in which their prompts were done. On real ranks (compare "
    "--device dist --tp 2) each tells the others a digest of its batch before it launches it: with "
    "this bug both stop there, and say in which step whose requests differ.",
    law="ranks",
    says="on rank 1",
    case=case("a: 4 -> 2; b: 7 -> 2", "mini_overlap:token_pool", kv=7, rows=2),
    edits=(
        Edit(
            "policy.plan:DecodeManager.schedule_next_batch",
            healthy="        for req in self.running_reqs\n",
            bug="        for req in set(self.running_reqs)\n",
        ),
    ),
    judge_by=ranks_agree,
    points_at=at(
        "forward 2",
        "step 2 runs a b here, and b a on the other rank",
    ),
)
