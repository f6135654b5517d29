"""Suspicions that do not hold, and misdiagnoses: what was thought, and what is true."""

from __future__ import annotations

from ...loops.overlap import AS_OF_0_5_21
from ..exhibit import Refuted, case

ring_too_small = Refuted(
    name="ring_too_small",
    title="A ring of 3 x max_running_requests is too small for prompts in chunks",
    references=("SGLang #13713", "SGLang #13916"),
    suspicion="Chunks of long prompts take so many future slots that the ring has to grow with the "
    "longest prompt, else a token is overwritten before it is read. #13713 and #13916 made it "
    "longer for that reason.",
    truth="The chunks do lap the ring, and it does no harm here: by the time slot 1 is taken "
    "again, the host has known the token in it for five steps, and sends the token itself. What "
    "was wrong is that a placeholder went on standing for a token that was known. With that put "
    "right, nobody reads the slot of a step that has come back, and with two steps in flight a "
    "ring of three times the running requests is enough, however long the prompts are.",
    case=case(
        "a: 7 -> 2; b: 5 1 6 9 2 1 -> 1",
        "overlap:ring",
        kv=11,
        rows=2,
        options=AS_OF_0_5_21,
        chunked_prefill_size=1,
    ),
)


row_reuse_on_one_stream = Refuted(
    name="row_reuse_on_one_stream",
    title="Row reuse, blamed for a tensor's short life",
    references=(
        "SGLang #18803",
        "SGLang #18746",
        "SGLang #18744",
        "SGLang #18958",
        "SGLang #26380",
    ),
    suspicion="With overlap, index errors on the device (SGLang #18744): a request that has "
    "finished gives its row back while a forward that names it still runs, and the next request "
    "gets the row. That was blamed, and #18746 and #18803 wanted to free rows later.",
    truth="The maintainers rejected it: the memory of a tensor was handed out while the forward "
    "stream had yet to read it (see tensor_freed_under_kernel). Row 1 is reused here too: b gets "
    "it while step 2 runs with a's surplus row. But all that reads or writes a row are ops on one "
    "stream, each with its own copy of what it needs, so b's come after a's; and every law holds. "
    "It is another thing where a second stream writes the row: see row_reused_in_flight, and "
    "SGLang's own barriers for its schedule stream (#26380).",
    case=case(
        "a: 18 -> 2; b: 7 3 5 -> 1",
        "overlap:pool",
        kv=4,
        eos={10},
        options=AS_OF_0_5_21,
        free_rule="at_once",
    ),
)
