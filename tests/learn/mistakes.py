"""Answers that are wrong, each with words of its verdict."""

from __future__ import annotations

Mistake = tuple[str, str, str]
"""Words of the solution, others instead ('': of all of it), and words of the verdict."""

MISTAKES: dict[str, tuple[Mistake, ...]] = {
    "Device": (
        ("max(self.now, self.free_at)", "self.now", "should be at 15"),
        ("max(self.now, self.free_at)", "self.free_at", "should be at"),
        ("self.now = max(self.now, end)", "self.now = end", "should be at 16"),
        ("return value", "return op", "the wait gave"),
        ("    start =", "    if not ms:\n            return fn(), self.now\n        start =",
         "wait for job 1` the host's clock is at 0 ms"),
        ("return fn(), self.free_at", "return fn, self.free_at", "the wait gave"),
        ("", "class Device:\n"
         "    def __init__(self):\n"
         "        self.now, self.free_at, self.end_of = 0, 0, {}\n"
         "    def work(self, ms):\n"
         "        self.now += ms\n"
         "    def launch(self, fn, ms):\n"
         "        value = fn()\n"
         "        self.free_at = max(self.now, self.free_at) + ms\n"
         "        self.end_of[value] = self.free_at\n"
         "        return value\n"
         "    def wait(self, op):\n"
         "        self.now = max(self.now, self.end_of[op])\n"
         "        return op\n", "the host's clock is at 15 ms, but it should be at 10"),
        ("", "class Device:\n"
         "    def __init__(self):\n"
         "        self.now, self.free_at, self.ends = 0, 0, {}\n"
         "    def work(self, ms):\n"
         "        self.now += ms\n"
         "    def launch(self, fn, ms):\n"
         "        self.free_at = max(self.now, self.free_at) + ms\n"
         "        self.ends[fn] = fn(), self.free_at\n"
         "        return fn\n"
         "    def wait(self, op):\n"
         "        value, end = self.ends[op]\n"
         "        self.now = max(self.now, end)\n"
         "        return value\n", "but it should be at 10"),
        ("", "class Device:\n"
         "    def __init__(self):\n"
         "        self.now, self.free_at, self.values = 0, 0, {}\n"
         "    def work(self, ms):\n"
         "        self.now += ms\n"
         "    def launch(self, fn, ms):\n"
         "        self.free_at = max(self.now, self.free_at) + ms\n"
         "        self.values[self.free_at] = fn()\n"
         "        return self.free_at\n"
         "    def wait(self, op):\n"
         "        self.now = max(self.now, op)\n"
         "        return self.values[op]\n", "the wait gave (1, 2)"),
        ("", "class Device:\n"
         "    def __init__(self):\n"
         "        self.now, self.free_at, self.jobs = 0, 0, []\n"
         "    def work(self, ms):\n"
         "        self.now += ms\n"
         "    def launch(self, fn, ms):\n"
         "        self.free_at = max(self.now, self.free_at) + ms\n"
         "        self.jobs.append([fn, self.free_at, None])\n"
         "        return len(self.jobs) - 1\n"
         "    def wait(self, op):\n"
         "        for job in self.jobs[: op + 1]:\n"
         "            job[2] = job[2] or job[0]()  # again, where it gave 0\n"
         "        self.now = max(self.now, self.jobs[op][1])\n"
         "        return self.jobs[op][2]\n", "the wait gave"),
    ),
    "generate_tokens": (
        ("tokens.append(device.wait(op))", "tokens.append(op)", "should give"),
        ("        device.work(6)\n", "", "the host worked 0 times"),
        ("return tokens[len(prompt):]", "return tokens", "should give"),
        ("lambda: model(tokens), 10)\n        tokens.append(device.wait(op))",
         "lambda: 0, 10)\n        device.wait(op)\n        tokens.append(model(tokens))",
         "host called `model`"),
        ("len(prompt)", "-count", "and 0 new tokens it gives `[8, 8]`, should give []"),
        ("", "def generate_tokens(device, model, prompt, count):\n"
         "    before = len(prompt)\n"
         "    for _ in range(count):\n"
         "        prompt.append(device.wait(device.launch(lambda: model(prompt), 10)))\n"
         "        device.work(6)\n"
         "    return prompt[before:]\n", "your lines write to the list `prompt`"),
        ("        device.work(6)\n",
         "        device.work(6)\n        if tokens[-1] == 0:\n            break\n",
         "give [5, 0, 85"),
        ("return tokens[len(prompt):]",
         "return tokens[tokens.index(tokens[len(prompt)]):] if count else []", "give [5, 0, 85"),
        ("range(count)", "range(min(count, 16))", "should give ["),
    ),
    "generate_ahead": (
        ("memory = list(prompt)", "memory = prompt", "your lines write to the list `prompt`"),
        (" if at < count - 1 else None", "", "launches;"),
        ("    tokens.append(device.wait(op))\n        device.work(6)",
         "    device.work(6)\n        tokens.append(device.wait(op))", "before it was there"),
        ("", "def generate_ahead(device, model, prompt, count):\n"
         "    tokens = list(prompt)\n"
         "    op = device.launch(lambda: model(tokens), 10)\n"
         "    for at in range(count):\n"
         "        tokens.append(device.wait(op))\n"
         "        if at < count - 1:\n"
         "            op = device.launch(lambda: model(tokens), 10)\n"
         "        device.work(6)\n"
         "    return tokens[len(prompt):]\n", "Launch first, then wait"),
        ("", "def generate_ahead(device, model, prompt, count):\n"
         "    memory = list(prompt)\n"
         "    def step():\n"
         "        memory.append(model(memory))\n"
         "        return memory[-1]\n"
         "    ops = [device.launch(step, 10) for _ in range(count)]\n"
         "    done = []\n"
         "    for op in ops:\n"
         "        done.append(device.wait(op))\n"
         "        device.work(6)\n"
         "    return done\n", "jobs were in flight at a time"),
        ("        device.work(6)\n",
         "        device.work(6)\n        if tokens[-1] == 0:\n            break\n",
         "give [5, 0, 85"),
    ),
    "my_loop": (
        ("last = pending", "last = pending or last", "Step 1 has already been processed"),
        ("elif not batch:\n            engine.on_idle()", "elif not batch:\n            pass",
         "did not call on_idle()"),
        (" if batch else None", "", "nothing to run; test `batch`"),
        ("recv_requests", "recv_request", "at your line `engine.recv_req"),
        ("elif not batch:\n            engine.on_idle()", "engine.on_idle()",
         "called on_idle() and also launched or processed a step"),
        ("", "from minisched.loops.overlap import overlap\n\n\ndef my_loop(engine):\n"
             "    yield from overlap(engine)\n", "is a loop of the package"),
        ("        last = pending\n        yield", "        last = pending\n    yield",
         "as no `yield` ends the turn"),
        ("        if last:\n            engine.process_batch_result(last)\n        elif",
         "        if pending:\n            engine.process_batch_result(pending)\n        elif",
         "Step 2 was launched only after step 1 was processed"),
    ),
    "step_time": (
        ("max(host, device, copy, (host + device + copy) / in_flight)",
         "host + device + copy if in_flight == 1 else max(host, device)",
         "gives 6, should give 6.5 ms"),
        ("return max(", "return None and max(", "not a number"),
        ("/ in_flight", "/ (in_flight - 1)", "ZeroDivisionError"),
        ("/ in_flight", "/ min(in_flight, 2)", "in_flight 3 it gives"),
        ("return max(host, device, copy, (host + device + copy) / in_flight)",
         "return round(max(host, device, copy, (host + device + copy) / in_flight), 1)",
         "should give"),
    ),
    "losing_costs": (
        ('"host_ms": 1', '"host_ms": -1', "host_ms is -1, but it must be"),
        ('"new_tokens": 3', '"new_tokens": 99', "must be at most 30"),
        ('"new_tokens": 3', '"new_tokens": 2.5', "must be a whole number"),
        ('"copy_ms": 1', '"requests": 2', "`requests` is none of host_ms"),
        ('"host_ms": 1', '"host_ms": 20', "overlap wins"),
        ("", "def losing_costs():\n"
         "    return dict(host_ms=0, device_ms=0, copy_ms=0, new_tokens=1)",
         "give the host or the device some work"),
    ),
    "resolve": (
        ("[-token]", "[token]", "there is no slot -"),
        ("[-token]", "[-token:][0]", "ask it for one slot at a time"),
        ("token < 0", "token <= 0", "should give `[0]`"),
        ("[-token]", "[abs(token) + 99]", "IndexError at your line"),
        ("", "def resolve(ids, token_ids_map):\n    return None", "must give a list of"),
        ("token < 0", "-100 < token < 0", "should give"),
    ),
    "alloc": (
        ("(future_ct + num_reqs) % limit", "future_ct",
         "reads future slot 1 for r1, which belongs to step 2 for r2"),
        ("range(future_ct + 1, future_ct + 1", "range(future_ct, future_ct", "be a token)"),
        ("slots, (", "(", "must give two things"),
        ("return slots, (future_ct + num_reqs) % limit",
         "slots = [1 + (slot - 1) % limit for slot in slots]\n"
         "    return slots, slots[-1] if slots[-1] >= slots[0] else 0",
         "a counter of 0 makes the next batch"),
        ("(future_ct + num_reqs)", "(future_ct + num_reqs + 1)", "skip slots"),
        ("    slots =", "    if future_ct + num_reqs > limit:\n        future_ct = 1\n    slots =",
         "slots stand in turn"),
        (
            "slots, (future",
            "[future_ct + 1] * num_reqs, (future",
            "reads future slot 1 for r1, which belongs to step 1 for r2",
        ),
        ("    slots =",
         "    if future_ct >= limit // 2:\n        future_ct = 0\n    slots =", "should give"),
    ),
    "limit": (
        ("", "def limit(m, n, c):\n    return 9 * m", "may stand in front"),
        ("max_running_requests * (3 + ceil(context_len / chunk))", "10**9", "memory is dear"),
        ("return max", "return 2 * max", "gives 88, but at most 46"),
        ("max_running_requests * (3 +", "3 * max_running_requests + (", "is lapped"),
    ),
    "generate": (
        ("tokens.append(y.item())\n        host_work(tokens[-1])",
         "tokens.append(y)\n        host_work(y.item())", "gives `[lazy token of step 1"),
        ("y.item()", "following.item()", "`host_work` got 44 as token 1"),
        ("        host_work(tokens[-1])\n", "", "the host worked 0 times"),
        ("following = step(y)", "following = step(y.item())", "the first token, or a lazy one"),
        ("        if left:\n            async_eval(following)\n", "", "would be enough"),
        ("    async_eval(y)\n", "", "would be enough"),
        ("        if left:\n            async_eval(following)\n        tokens.append(y.item())\n",
         "        tokens.append(y.item())\n        if left:\n            async_eval(following)\n",
         "Launch first, then wait"),
        ("if left:", "if True:", "a step after the last token is wasted"),
        ("    return tokens", "    host_work(tokens[-1])\n    return tokens",
         "called more than 14 times"),
        ("    return tokens", "    async_eval(step(y))\n    return tokens",
         "`async_eval` got token 16, but 14 are asked for"),
        ("", "def generate(step, first, count, async_eval, host_work):\n"
         "    tokens, handed_over = [], [step(first)]\n"
         "    async_eval(handed_over[0])\n"
         "    for at in range(count):\n"
         "        while len(handed_over) < min(count, 2 * at + 2):\n"
         "            handed_over.append(step(handed_over[-1]))\n"
         "            async_eval(handed_over[-1])\n"
         "        tokens.append(handed_over[at].item())\n"
         "        host_work(handed_over[at].item())  # a second wait ends no second job\n"
         "    return tokens\n", "jobs were in flight at a time"),
    ),
    "turn": (
        ("batch, pending)", "batch)", "alone it gives"),
        ("run_batch(batch, pending)", "run_batch(engine.chain(pending.batch), pending)",
         "was taken from `chain` and never launched"),
        ("    engine.process_batch_result(pending)\n", "", "`turn` never processed `pending`"),
        ("return following", "return None", "but gave back None"),
        ("return following", "return batch", "must give the step it launched"),
        ("", "def turn(engine, pending):\n    engine.process_batch_result(pending)\n",
         "Step 3 was launched only after step 2 was processed"),
    ),
    "may_chain": (
        ("batch == running and ", "", "it broke the scheduler"),
        ("batch == running", "bool(running)", "it broke the scheduler"),
        ("batch == running", "len(batch) == len(running) and batch[-1:] == running[-1:]",
         "it gives True, should give False"),
        (" and pages_short == 0", "", "it broke the scheduler"),
        ("waiting or chunked is not None", "chunked is not None", "waits and is first"),
        ("return batch == running and pages_short == 0", "return False",
         "another step could run"),
        ("waiting or chunked is not None", "waiting", "pages_short 0 it gives True"),
        ("batch == running", "len(batch) == len(running)", "it gives True, should give False"),
        ("batch == running", "set(batch) <= set(running)", "it gives True, should give False"),
        ("pages_short == 0", "pages_short <= 1", "pages_short 1 it gives True"),
        ("waiting or chunked", "len(waiting) > 1 or chunked", "it gives True, should give False"),
        ("pages_short == 0", "pages_short == 0 and len(batch) < 8",
         "it gives False, should give True"),
    ),
    "cut": (
        ("rem_chunk // page_size * page_size", "rem_chunk", "in the middle of a page"),
        ("rem_chunk // page_size * page_size", "page_size", "two prompts would be half computed"),
        ("rem_chunk is None or ", "", "TypeError at your line"),
        ("if rem_chunk is None or extend_len <= rem_chunk", "if rem_chunk is None",
         "should give"),
        ("rem_chunk is None", "not rem_chunk", "should give"),
        ("return rem_chunk // page_size * page_size", "return rem_chunk & ~(page_size - 1)",
         "should give"),
        ("return rem_chunk //", "return 1.0 * rem_chunk //", ".0, should give"),
        ("extend_len <= rem_chunk", "extend_len < rem_chunk", "should give"),
        ("if rem_chunk is None or extend_len <= rem_chunk:\n        return extend_len\n    "
         "return rem_chunk // page_size * page_size",
         "return min(extend_len, rem_chunk // page_size * page_size) if rem_chunk else "
         "extend_len", "should give"),
        ("rem_chunk // page_size * page_size", "rem_chunk - rem_chunk % 2", "should give"),
        ("rem_chunk // page_size * page_size", "max(page_size, rem_chunk // page_size * page_size)",
         "should give"),
        ("extend_len <= rem_chunk", "extend_len <= page_size", "should give"),
        ("rem_chunk // page_size * page_size",
         "rem_chunk // page_size // 2 * page_size or page_size",
         "two prompts would be half computed"),
        ("return rem_chunk //", "return min(rem_chunk, 16) //", "should give"),
    ),
    "fits": (
        (" + page_size", "", "but the rules admit"),
        ("page_size < left", "page_size <= left", "but the rules admit"),
        (" + new_tokens", "", "but the rules admit"),
        ("extend_len + new_tokens", "2 * (extend_len + new_tokens)",
         "is refused, but no other request holds memory"),
        ("extend_len + new_tokens + page_size < left", "True", "but the rules admit"),
        ("new_tokens + page_size", "min(new_tokens, 64) + page_size",
         "it gives True, should give False"),
        ("page_size < left", "page_size < left or left > 100", "it gives True, should give False"),
    ),
    "order": (
        ("-one.cached_len", "one.cached_len", "the number of prompt tokens computed is "),
        ("-one.cached_len", "(-one.cached_len, one.prompt_len)", "should give"),
        ("-one.cached_len", "one.prompt_len", "the number of prompt tokens computed is "),
        ("-one.cached_len", "-one.prompt_len", "should give"),
        ("sorted(waiting, key=lambda one: -one.cached_len)", "waiting[:1]",
         "each of them, once"),
        ("sorted(waiting, key=lambda one: -one.cached_len)", "waiting[::-1]", "should give"),
        ("key=lambda one: -one.cached_len", "key=lambda one: one.rid, reverse=True", "should give"),
        ("-one.cached_len", "-one.cached_len / one.prompt_len", "should give"),
        ("-one.cached_len", "-(one.cached_len > 0)", "should give"),
        ("-one.cached_len", "one.prompt_len - one.cached_len",
         "the number of prompt tokens computed is "),
        ("sorted(waiting,", "sorted(waiting[:128],", "should give"),
    ),
    "decodes_first": (
        ("chunks >= 1", "True", "Needed: a makespan of at most 748.8 ms."),
        ("chunks >= 1", "chunks >= 2", "Needed: at least 400 points."),
        ("chunks >= 1", "chunk >= 1", "NameError at your line"),
    ),
    "shared_pages": (
        (" // page_size", "", "page"),
        ("same // page_size", "-(-same // page_size)", "The law: identity"),
        (" and edge[same] == tokens[same]", "", "reads it as its token"),
        ("same < len(edge) and ", "", "IndexError at your line"),
        ("return same // page_size", "return 0", "it gives 0, should give 1"),
        ("return same // page_size",
         "return sum(a == b for a, b in zip(edge, tokens)) // page_size", "reads it as its token"),
        ("return same // page_size", "return min(same // page_size, 8)", "it gives 8, should give"),
        ("same // page_size", "max(1, same // page_size)", "it gives 1, should give 0"),
        ("same = 0", "same = 1", "it gives 1, should give 0"),
    ),
    "to_lock": (
        ("return path", "return path[:1]", "has 0 locks"),
        ("return path", "return path[-1:]", "lock_ref is 0"),
        ("return path", "return []", "lock_ref"),
        ("return path", "return path * 2", "gave a node twice"),
        ("return path", "return tuple(path)", "should give"),
        ("return path", "return path[:3]", "should give"),
        ("return path", "return path[:16]", "should give"),
        ("while node.parent is not None", "while node is not None", "should give"),
    ),
    "evict": (
        ("min(free", "max(free", "but by lru those are"),
        ("leaf.last_used", "-leaf.num_pages", "but by lru those are"),
        ("leaf.last_used", "(leaf.num_pages, leaf.last_used)", "should give"),
        ("min(free, key=lambda leaf: leaf.last_used)",
         "min(leaves, key=lambda leaf: leaf.last_used + 100 * leaf.lock_ref)", "should give"),
        ("min(free, key=lambda leaf: leaf.last_used)", "free[0]", "but by lru those are"),
        ("min(free, key=lambda leaf: leaf.last_used)", "free[-1]", "but by lru those are"),
        ("[leaf for leaf in leaves if leaf.lock_ref == 0]", "leaves",
         "evicted before it was locked"),
        ("return min(free, key=lambda leaf: leaf.last_used)", "return None",
         "which is not one of the leaves"),
        ("min(free", "min(free[:4]", "should give"),
        ("leaf.last_used", "leaf.last_used or 10**9", "should give"),
        ("min(free", "min(free[:128]", "should give"),
    ),
    "pages_short": (
        ("-(-one.length // page_size)", "one.length // page_size", "pop from empty list"),
        ("-(-one.length // page_size)", "one.length // page_size + 1", "is retracted, when"),
        ("-(-one.length // page_size)", "one.length", "should give"),
        ("return lacking - free", "return lacking", "should give"),
        ("return lacking - free", "return min(1, lacking - free)", "it gives 1, should give 2"),
        ("-(-one.length // page_size) - one.num_pages", "one.length - one.num_pages * page_size",
         "should give"),
        ("+= max", "= max", "should give"),
        ("return lacking - free", "return 0", "pop from empty list"),
        ("max(0, -(-one.length // page_size) - one.num_pages)",
         "one.length > one.num_pages * page_size", "should give"),
        ("max(0, -(-one.length // page_size) - one.num_pages)",
         "-(-one.length // page_size) - one.num_pages", "should give"),
        ("in running", "in running[:16]", "should give"),
        ("return lacking - free", "return lacking - min(free, 16)", "should give"),
    ),
    "choose_victim": (
        ("one.num_outputs, -one.prompt_len", "-one.num_outputs, -one.prompt_len",
         "but the rule names"),
        ("one.num_outputs, -one.prompt_len", "one.num_outputs, one.prompt_len",
         "but the rule names"),
        ("reversed(running)", "running[:1]", "but the rule names"),
        ("(one.num_outputs, -one.prompt_len)", "one.num_outputs - one.prompt_len / 100",
         "should give"),
        ("reversed(running)", "running", "too, and began to decode last"),
        ("return min(latest, key=lambda one: (one.num_outputs, -one.prompt_len))",
         "return None", "not one of those who run"),
        ("(one.num_outputs,", "(min(one.num_outputs, 64),", "should give"),
        ("(one.num_outputs, -one.prompt_len)", "one.num_outputs + one.prompt_len", "should give"),
        ("reversed(running)", "reversed(running[-64:])", "should give"),
    ),
    "may_free": (
        ("last_step <= returned", "last_step < launched", "it gives False, should give True"),
        ("last_step <= returned", "last_step < returned", "it gives False, should give True"),
        ("last_step <= returned", "last_step == returned", "it gives False, should give True"),
        ("last_step <= returned", "returned >= launched - 1", "The law: identity"),
        ("last_step <= returned", "returned >= launched - 1 and last_step <= returned",
         "it gives False, should give True"),
        ("last_step <= returned", "launched == returned", "was released only in"),
        ("last_step <= returned", "False", "it gives False, should give True"),
    ),
    "kept": (
        ("(max_new_tokens - num_outputs) / 3", "0", "Needed: at most 0 retractions."),
        ("/ 3", "/ 2", "Needed: at least 240 points."),
        ("(max_new_tokens - num_outputs) / 3", "10", "On a second workload, short answers:"),
        ("/ 3", "// 0", "ZeroDivisionError at your line"),
    ),
    "rides": (
        ("sum(prompt_pages) + sum(decode_pages) <= free", "True", "pop from empty list"),
        ("sum(prompt_pages) + ", "", "pop from empty list"),
        (" <= free", " < free", "it gives False, should give True"),
        ("sum(decode_pages)", "len(decode_pages)", "it gives False, should give True"),
        ("sum(prompt_pages) + sum(decode_pages)", "len(prompt_pages) + len(decode_pages)",
         "it gives False, should give True"),
        (" + sum(decode_pages)", "", "it gives True, should give False"),
        ("<= free", "<= free > 0", "free 0 it gives False, should give True"),
        ("sum(prompt_pages)", "sum(prompt_pages[:3])", "it gives True, should give False"),
        ("sum(decode_pages)", "sum(decode_pages[:64])", "it gives True, should give False"),
        ("<= free", "<= min(free, 64)", "it gives False, should give True"),
    ),
    "longest_pause": (
        (" + decode", "", "should give"),
        ("per_token * chunk", "per_token * (chunk + running)", "should give"),
        ("-(-prompt // chunk) * base", "prompt / chunk * base", "should give"),
        ("return decode", "return base + per_token * prompt", "should give"),
        ("return decode", "return None", "which is not a number"),
        ("return decode", "return round(decode, 2)", "should give"),
        ("per_token * running", "per_token * (running + 1)", "should give"),
        ("-(-prompt // chunk)", "(prompt // chunk + 1)", "should give"),
    ),
    "prompts_a_second": (
        ("max(read, link * prompt)", "(read + link * prompt)", "should give"),
        ("max(read, link * prompt)", "read", "should give"),
        ("-(-prompt // chunk) * base", "base", "should give"),
        ("1000 / max", "1 / max", "should give"),
        ("return 1000 / max(read, link * prompt)", "return max(1, 1000 / max(read, link * prompt))",
         "it gives 1, should give 0."),
    ),
    "chunk_size": (
        ("48 + 8 * waiting", "48", "Needed: a makespan of at most 1029.1 ms."),
        ("48 + 8 * waiting", "128", "Needed: at least 280 points."),
        ("48 + 8 * waiting", "64", "On a second workload, prompts at once:"),
        ("48 + 8 * waiting", "0", "must be a whole number of at least 1"),
        ("48 + 8 * waiting", "1", "Needed: a makespan of at most 1029.1 ms."),
    ),
    "bubble": (
        (" + rest_ms", "", "rest_ms 4 it gives"),
        ("max(stage_ms, round_ms / batches)", "round_ms / batches", "it gives -"),
        ("round_ms / batches", "round_ms / stages", "With batches 1"),
        ("1 - stage_ms / step_ms", "1 - 5 / step_ms", "stage_ms 3, rest_ms 4 it gives"),
    ),
    "batch_queue_loop": (
        (" or not batch", "", "ended"),
        ("len(queue) == depth", "len(queue) > depth", "steps were in flight, but `depth` is"),
        ("== depth", "== 4", "3 steps were in flight, but `depth` is 2"),
        ("== depth", "== max(depth, 2)", "2 steps were in flight, but `depth` is 1"),
        ("== depth", "== min(depth, 4)", "First fill the queue"),
        ("== depth", "== min(depth, 32)", "First fill the queue"),
        ("while True:", "for _ in range(100):", "came to its end"),
        ("pop(0)", "pop()", "but 1 is next"),
        ("queue and (len(queue) == depth or not batch)", "queue", "First fill the queue"),
    ),
    "ends_in_flight": (
        ("computed + 1 >= length", "computed >= length", "may waste 0"),
        ("computed + 1 >= length", "True", "it gives True, should give False"),
        ("computed + 1 >= length", "computed + 2 >= length", "it gives True, should give False"),
        ("computed + 1 >= length", "computed + placeholders >= length",
         "it gives True, should give False"),
        ("computed + 1 >= length", "computed + 1 == length - placeholders", "should give"),
        ("computed + 1 >= length", "computed + 1 == length", "it gives False, should give True"),
        ("computed + 1 >= length", "100 > computed + 1 >= length", "should give True"),
    ),
    "fill": (
        ("if ids[-1] == -1", "if rid in last_rids", "but needs its own tokens as they are"),
        ("last_rids.index(rid)", "len(filled)", "list index out of range"),
        ("last_rids.index(rid)", "last_rids.index(rid) - 1", "'s token"),
        ("if ids[-1] == -1", "if False", "a -1 is left in"),
        ("if ids[-1] == -1", "if ids == [-1]", "should give"),
        ("if ids[-1] == -1", "if ids[-1] == -1 and len(ids) < 10", "should give"),
        ("ids = [*ids[:-1], sampled[last_rids.index(rid)]]",
         "ids[-1] = sampled[last_rids.index(rid)]", "your lines write to `rows`"),
        ("    return filled", "", "gave None"),
    ),
    "must_wait": (
        ("unknown > 0 and ", "", "unknown 0 it gives True, should give False"),
        (" and (has_grammar or has_penalties)", "", "it gives True, should give False"),
        ("unknown > 0", "unknown == 1", "it gives False, should give True"),
        ("unknown > 0", "9 > unknown > 0", "it gives False, should give True"),
        ("unknown > 0", "unknown > 1", "unknown 1 it gives False, should give True"),
        ("has_grammar or has_penalties", "has_grammar", "penalties"),
        ("has_grammar or has_penalties", "has_penalties", "alone it gives"),
    ),
    "waiting_loop": (
        (", delay_sample=delay", "", "The sampling of step 2 was launched too early"),
        ("if delay:\n", "if False:\n", "was delayed"),
        ("        if last:\n",
         "        if delay:\n            engine.launch_batch_sample_if_needed(pending)\n"
         "        if last:\n",
         "was launched too early: its grammar needs a token that is not processed yet"),
        ("bool(batch) and engine.must_delay_sample(batch)", "bool(batch)",
         "no row of it lacks a token"),
    ),
    "accept": (
        ("count + 1]", "count]", "at least one"),
        ("count < len(drafts) and drafts[count] == sampled[count]", "count < len(drafts)",
         "should give `["),
        ("drafts[count] == sampled[count]", "drafts[count] is sampled[count]", "should give `["),
        ("drafts[count] == sampled[count]", "drafts[count] in sampled", "should give `["),
        ("count < len(drafts) and ", "", "list index out of range"),
    ),
    "happens_before": (
        ('clock = dict(newest.get(lane, {}))', "clock = newest.get(lane, {})",
         "a copy of its own"),
        ('elif kind == "wait":', 'elif kind == "waits":', "surely comes before"),
        ('if kind == "begin":', 'if kind == "begins":', "surely comes before"),
        ("max(clock.get(other, 0), count)", "count", "but your clocks do"),
        ("clock.get(lane, 0) + 1", "clock.get(lane, 0) + 2", "should be {'host': 1}"),
        ("ended.setdefault(what, clock)", "ended[what] = clock",
         "waits for the first signal of op 1, which is act 2 (forward: end 1)"),
        (
            'elif kind in ("end", "say"):\n            ended.setdefault(what, clock)',
            'elif kind == "end" or kind == "say" and what not in ended:\n'
            "            ended[what] = clock",
            "which is act 2 (forward: say 1), and not for act 3 (forward: end 1)",
        ),
    ),
    "race": (
        ("not set(cells) & set(its_cells)", "cells[0] not in its_cells", "but you found nothing"),
        (' or kind == its_kind == "read"', "", "can't hurt each other"),
        ("memory != its_memory or ", "", "can't hurt each other"),
        (" or not set(cells) & set(its_cells)", "", "can't hurt each other"),
        ("if clocks[i][lane] > clocks[j].get(lane, 0):", "if True:", "no race"),
        (', "free"', "", "you found nothing"),
        ('kind == its_kind == "read"', "kind == its_kind", "but you found nothing"),
        ("set(its_cells)", "set(its_cells[:1])", "but you found nothing"),
        (
            "not set(cells) & set(its_cells)",
            "max(cells) < its_cells[0] or max(its_cells) < cells[0]",
            "can't hurt each other",
        ),
        ("set(cells) & set(its_cells)", "set(cells[:30]) & set(its_cells)", "found nothing"),
        ("i >= j", "i >= j or j - i > 40", "but you found nothing"),
        ("lane == other", "lane in other", "but you found nothing"),
        ("memory != its_memory", "memory not in its_memory", "can't hurt each other"),
        ("i >= j", 'i >= j or its_kind == "free"', "but you found nothing"),
    ),
    "diagnose": (
        ('"overlap"', '"livelock"', "the law that it breaks is not"),
        ('"prepare", 2', '"prepare", 1', "did nothing wrong"),
        ('"forward", 3', '"forward", 2', "did nothing wrong"),
        ('"forward", 3', '"sample", 2', "left the right token. Which slice did not take it?"),
        ('"forward", 3', '"output", 3', "only follows from a wrong input"),
        ('"wait", 2', '"launch", 2', "Which slice made it late?"),
        ('"wait", 2', '["wait"], 2', "the name is a text"),
    ),
    "bubble_fraction": (
        ("max(0, start - done)", "start - done", "should give"),
        ("done = max(done, end)", "done = end", "should give"),
        ("sorted(ops, key=lambda op: op[1])", "ops", "should give"),
        ("idle / (done - first)", "idle / done", "should give 0."),
        ("    idle = 0", "    idle = 0\n    ops.sort()", "your lines write to `ops`"),
    ),
    "blocking_call": (
        (' and "Async" not in call', "", "cudaMemcpyAsync"),
        (" if blocked else None", "", "ValueError"),
        ('call.endswith("Synchronize") or ', "", "should give"),
        ("blocked.get((call, within), 0) + ms", "ms", "should give"),
        ("0) + ms", "0) + ms + 1", "should give"),
        ("0) + ms", "0) + round(ms)", "should give"),
        ("0) + ms", "0) + round(ms, 1)", "should give"),
        ("0) + ms", "0) + round(ms, 3)", "0.0004"),
        ('"Async" not in call', '"Async" not in call + within', "should give"),
        ('"Memcpy" in call', '"Mem" in call', "should give"),
        ('("Memcpy" in call and "Async" not in call)', '"Launch" not in call', "should give"),
        ('"Async" not in call', 'not call.endswith("Async")', "cuMemcpyDtoHAsync_v2"),
        ("", "def blocking_call(calls):\n"
         "    sums, longest = {}, {}\n"
         "    for call, within, ms in calls:\n"
         "        if call.endswith('Synchronize') or ('Memcpy' in call and 'Async' not in call):\n"
         "            sums[call] = sums.get(call, 0) + ms\n"
         "            longest[call] = max(longest.get(call, (0, '')), (ms, within))\n"
         "    if not sums:\n"
         "        return None\n"
         "    call = max(sums, key=sums.get)\n"
         "    return call, longest[call][1]\n", "should give `('cudaEventSynchronize'"),
    ),
    "launched_ahead": (
        ("earlier[2]", "earlier[1]", "should give"),
        ("later[0]", "later[1]", "should give"),
        ("later[0] < earlier[2]", "later[0] < later[1]", "With steps `[(0, 5000, 900000)"),
        ("later[0] < earlier[2]", "later[1] <= earlier[2]", "should give"),
        ("later[0] < earlier[2]", "later[0] < max(one[2] for one in steps[: steps.index(later)])",
         "it gives 2, should give 1"),
        ("later[0] < earlier[2]", "later[0] < earlier[2] - 1", "should give"),
    ),
    "capstone": (
        ("self.waiting.append(req)", "pass", "Level 1 of 5"),
        ("if room.may_run(req)", "", "ask `room.may_run`"),
        ("queue.remove(req)", "pass", "Level 2 of 5"),
        ("left = self.add(prompts, self.chunked, left)", "self.add(prompts, self.chunked, left)",
         "but chunked_prefill_size is"),
        (" or (req.extend_len > left and not room.may_cut and prompts)", "",
         "but max_prefill_tokens is"),
        (" and not room.may_cut and prompts", " and prompts", "which request could run too?"),
        ("req.extend_len > left and", "req.extend_len - 1 > left and",
         "but max_prefill_tokens is"),
        ("req.extend_len > left and not room.may_cut and prompts", "not room.may_cut and prompts",
         "which request could run too?"),
        ("if room.may_run(req)]", "if room.may_run(req)][: room.prompt_tokens]",
         "which request could run too?"),
        (" - self.promised(room)", "", "keep some free"),
        (" - sum(map(room.pages_held, holding))", "", "Level 5 of 5"),
        ("need = -(-req.max_device_len // room.page_size)",
         "need = req.max_device_len // room.page_size", "Level 3 of 5"),
        ("whole = (-(-req.max_device_len // room.page_size)",
         "whole = (req.max_device_len // room.page_size", "Level 3 of 5"),
        ("if not room.may_cut:", "if False:", "may not be cut here"),
        ("delay = engine.must_delay_sample(batch)", "delay = False", "Level 4 of 5"),
        ("if room.may_run(req)]", "if room.may_run(req)] * 2", "is twice in one step"),
        ("    def __init__(self):\n        self.waiting, self.running = [], []\n        self.",
         "    waiting, running = [], []\n    ", "make its lists in `__init__`"),
        ("return prompts, []", "return prompts * 2, []", "is twice in one step"),
        ("return prompts, []", "return prompts, [req for req, _ in prompts]",
         "is twice in one step: in the prompts, and again in the decodes"),
        ("return prompts, []", "return [req for req, _ in prompts], []",
         "but it must be `(req, length)`"),
        ("while self.waiting and", "while len(self.running) < 4 and self.waiting and",
         "which request could run too?"),
        ("while self.waiting and", "while len(self.running) < 64 and self.waiting and",
         "which request could run too?"),
        ("room.prompt_tokens,", "min(room.prompt_tokens, 512),", "which request could run too?"),
        ("        if last:\n            engine.process_batch_result(last)\n        elif",
         "        if step:\n            engine.process_batch_result(step)\n        elif",
         "Level"),
    ),
    "input_ids": (
        ("in_flight > 1", "in_flight > 0", "in_flight=1)]` it gives `[-4]`"),
        ("-1 - seq.slot", "-seq.slot", "it gives `[-6]`, should give `[-7]`"),
        (" if seq.answer else 0", "", "IndexError at your line"),
        ("seq.answer[-1]", "seq.answer[0]", "should give"),
        ("seq.in_flight > 1", "seq.in_flight > 1 and seq.answer", "should give"),
        ("seq.in_flight > 1", "seq.in_flight == 2", "in_flight=3)]` it gives"),
        ("-1 - seq.slot", "-1 - min(seq.slot, 7)", "should give"),
        ("return ids", "return [float(it) for it in ids]", "should give"),
    ),
    "generate_overlapped": (
        (
            "while last or not engine.is_finished",
            "while not engine.is_finished",
            "launched steps were never processed",
        ),
        (" if seqs else None", "", "`launch` got no sequence"),
        ("", "def generate_overlapped(engine):\n    return\n", "gets the tokens []"),
        ("", "def generate_overlapped(engine):\n"
         "    queue = []\n"
         "    while queue or not engine.is_finished:\n"
         "        seqs = engine.schedule()\n"
         "        if seqs:\n"
         "            queue.append(engine.launch(seqs, engine.input_ids(seqs)))\n"
         "        if len(queue) > 2 or queue and not seqs:\n"
         "            step = queue.pop(0)\n"
         "            engine.postprocess(step, engine.wait(step))\n", "Two keep the device busy"),
        (
            "engine.input_ids(seqs)",
            "[seq.last_token if seq.answer else 0 for seq in seqs]",
            "in the serial loop",
        ),
        ("        last = step", "        last = step or last", "has already been processed"),
        ("engine.postprocess(last, engine.wait(last))",
         "engine.postprocess(last, last.tokens)\n            engine.wait(last)",
         "Step 1 is processed before you waited for it"),
        (
            "        if last:\n            engine.postprocess(last, engine.wait(last))\n"
            "        last = step",
            "        if step:\n            engine.postprocess(step, engine.wait(step))",
            "Serial: 0 of",
        ),
        ("", "def generate_overlapped(engine):\n"
         "    last = None\n"
         "    while last or not engine.is_finished:\n"
         "        seqs = engine.schedule()\n"
         "        tokens = engine.wait(last) if last else None\n"
         "        step = engine.launch(seqs, engine.input_ids(seqs)) if seqs else None\n"
         "        if last:\n"
         "            engine.postprocess(last, tokens)\n"
         "        last = step\n", "launch first, then wait"),
        ("", "def generate_overlapped(engine):\n"
         "    last = None\n"
         "    while seqs := engine.schedule():\n"
         "        step = engine.launch(seqs, engine.input_ids(seqs))\n"
         "        if last:\n"
         "            engine.postprocess(last, engine.wait(last))\n"
         "        last = step\n"
         "    engine.postprocess(last, engine.wait(last))\n", "in the serial loop"),
    ),
}  # fmt: skip
