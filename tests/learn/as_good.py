"""Mutants of a solution that are as good: by exercise, and by the reason.

A mutant is named by its lines that differ.
"""

from __future__ import annotations

AS_GOOD: dict[str, dict[str, tuple[str, ...]]] = {
    "Device": {
        "no work moves no clock": ("if ms + 0 == 0: return ...",),
        "`op` is the pair that their own `launch` gave": (
            "if len(op) == 0: return ...",
            "if len(op) == 1: return ...",
            "if len(op) > 2: return ...",
        ),
    },
    "generate_tokens": {
        "a prompt has a token": ("if len(prompt) == 0: return ...",),
        "nothing reads `_`": ("for _ in reversed(list(range(count))):",),
        "the length is the same": (
            "return tokens[len(sorted(prompt)):]",
            "return tokens[len(prompt[::-1]):]",
        ),
    },
    "generate_ahead": {
        "a prompt has a token": (
            "if len(prompt) == 0: return ...",
            "return memory[1:][-1]",
        ),
        "the text says that `count` is at least 1": (
            "if count + 0 == 0: return ...",
            "following = device.launch(step, 10) if at < max(0, count - 1) else None",
            "following = device.launch(step, 10) if at < abs(count - 1) else None",
        ),
        "`at` is never more than `count - 1`": (
            "following = device.launch(step, 10) if (at) != (count - 1) else None",
        ),
        "the host's work reads no `op`": ("op = following",),
    },
    "my_loop": {
        "a generator goes on after its `yield`": ("yield",),
        "a step is pending if there is a batch": ("elif not pending:",),
    },
    "step_time": {"a step is in flight": ("if in_flight + 0 == 0: return ...",)},
    "losing_costs": {
        "overlap loses with these as well": (
            'return {"host_ms": 2, "device_ms": 20, "copy_ms": 1, "new_tokens": 3}',
            'return {"host_ms": 0, "device_ms": 20, "copy_ms": 1, "new_tokens": 3}',
            'return {"host_ms": 1, "device_ms": 21, "copy_ms": 1, "new_tokens": 3}',
            'return {"host_ms": 1, "device_ms": 20, "copy_ms": 2, "new_tokens": 3}',
            'return {"host_ms": 1, "device_ms": 20, "copy_ms": 0, "new_tokens": 3}',
            'return {"host_ms": 1, "device_ms": 20, "copy_ms": 1, "new_tokens": 4}',
        ),
    },
    "resolve": {
        "a step has a row, and the buffer a slot": (
            "if len(ids) == 0: return ...",
            "if len(token_ids_map) == 0: return ...",
        ),
        "the sign is the same": (
            "return [token_ids_map[-token] if min(1, token) < 0 else token for token in ids]",
            "return [token_ids_map[-token] if (token // 2 * 2) < 0 else token for token in ids]",
        ),
        "a placeholder is below 0": (
            "return [token_ids_map[-min(1, token)] if token < 0 else token for token in ids]",
        ),
    },
    "alloc": {
        "a step has a row, and the ring more slots than a step has rows": (
            "if num_reqs + 0 == 0: return ...",
            "if limit + 0 == 0: return ...",
            "if limit + 0 == 1: return ...",
            "if limit + 0 == 2: return ...",
            "if num_reqs + 0 == limit + 0: return ...",
            "if num_reqs + 0 > limit + 0: return ...",
        ),
        "the counter begins again at the limit": (
            "if future_ct + 0 == limit + 0: return ...",
            "if future_ct + 0 > limit + 0: return ...",
        ),
        "a range is sorted and has nothing twice": (
            "return sorted(slots), (future_ct + num_reqs) % limit",
            "return list(dict.fromkeys(slots)), (future_ct + num_reqs) % limit",
        ),
    },
    "limit": {
        "a server has requests, tokens and chunks": (
            "if max_running_requests + 0 == 0: return ...",
            "if context_len + 0 == 0: return ...",
            "if chunk + 0 == 0: return ...",
        ),
        "it lies between what is needed and what the text allows": (
            "return max_running_requests * (4 + ceil(context_len / chunk))",
            "return max_running_requests * (0 + ceil(context_len / chunk))",
            "return (max_running_requests * (3 + ceil(context_len / chunk)) + 1)",
            "return (max_running_requests * (3 + ceil(context_len / chunk)) - 1)",
            "return max_running_requests * ((3 + ceil(context_len / chunk) + 1))",
            "return max_running_requests * ((3 + ceil(context_len / chunk) - 1))",
            "return max_running_requests * (3 + (ceil(context_len / chunk) + 1))",
            "return max_running_requests * (3 + (ceil(context_len / chunk) - 1))",
            "return max_running_requests * (3 + ceil((context_len / chunk + 1)))",
            "return max_running_requests * (3 + ceil((context_len / chunk - 1)))",
            "return max_running_requests * (3 + ceil(int(context_len / chunk)))",
            "return max_running_requests * (3 + ceil(round(context_len / chunk)))",
            "return max_running_requests * (3 + ceil((context_len + 1) / chunk))",
            "return max_running_requests * (3 + ceil((context_len - 1) / chunk))",
            "return max_running_requests * (3 + ceil((context_len // 2 * 2) / chunk))",
        ),
    },
    "generate": {
        "the text says that `count` is at least 1": ("if count + 0 == 0: return ...",),
        "only whether there is a token left counts": ("if min(1, left):",),
        "the host's work reads no graph": ("y = following",),
    },
    "turn": {},
    "may_chain": {
        "a step has a request": ("if len(batch) == 0: return ...",),
        "no request is in a list twice": (
            "if len(batch) > len({*batch}): return ...",
            "if len(running) > len({*running}): return ...",
            "if len(waiting) > len({*waiting}): return ...",
            "return list(dict.fromkeys(batch)) == running and pages_short == 0",
            "return batch == list(dict.fromkeys(running)) and pages_short == 0",
        ),
        "only whether a request waits counts, and no id is empty": (
            "if sorted(waiting) or chunked is not None:",
            "if waiting[::-1] or chunked is not None:",
            "if list(dict.fromkeys(waiting)) or chunked is not None:",
            "if waiting[:1] or chunked is not None:",
            "if waiting or chunked:",
        ),
        "those who stay keep their order": (
            "return set(batch) == set(running) and pages_short == 0",
        ),
        "the pages are 0 or more": (
            "return batch == running and min(1, pages_short) == 0",
            "return batch == running and (pages_short) <= (0)",
            "return batch == running and (pages_short) is (0)",
            "return batch == running and bool(pages_short) == bool(0)",
        ),
    },
    "cut": {
        "a page has a token, and a request one to compute": (
            "if page_size + 0 == 0: return ...",
            "if extend_len + 0 == 0: return ...",
        ),
    },
    "fits": {
        "a page has a token, and a request one to compute": (
            "if page_size + 0 == 0: return ...",
            "if extend_len + 0 == 0: return ...",
        ),
    },
    "order": {
        "no request waits twice": (
            "if len(waiting) > len({*waiting}): return ...",
            "return sorted(list(dict.fromkeys(waiting)), key=lambda one: -one.cached_len)",
        ),
        "the order of the keys is the same": (
            "return sorted(waiting, key=lambda one: -(one.cached_len + 1))",
            "return sorted(waiting, key=lambda one: -(one.cached_len - 1))",
        ),
    },
    "decodes_first": {
        "every rule with enough points is right: no prompt runs where chunks are 1 or more": (
            "if chunks + 0 == 1: return ...",
            "if chunks + 0 == 2: return ...",
            "if chunks + 0 > 2: return ...",
            "if running + 0 == 0: return ...",
            "if running + 0 == 2: return ...",
            "if chunks + 0 == running + 0: return ...",
            "if chunks + 0 > running + 0: return ...",
            "return min(1, chunks) >= 1",
            "return (chunks) == (1)",
            "return (chunks) is (1)",
        ),
    },
    "shared_pages": {
        "an edge has a page, a prompt and a page have a token": (
            "if len(edge) == 0: return ...",
            "if len(tokens) == 0: return ...",
            "if page_size + 0 == 0: return ...",
        ),
        "the length is the same": (
            "while same < len(sorted(edge)) and same < len(tokens) and edge[same] == tokens[same]:",
            "while same < len(edge[::-1]) and same < len(tokens) and edge[same] == tokens[same]:",
            "while same < len(edge) and same < len(sorted(tokens)) and edge[same] == tokens[same]:",
            "while same < len(edge) and same < len(tokens[::-1]) and edge[same] == tokens[same]:",
        ),
        "`same` grows by one, so it meets the length": (
            "while (same) != (len(edge)) and same < len(tokens) and edge[same] == tokens[same]:",
            "while same < len(edge) and (same) != (len(tokens)) and edge[same] == tokens[same]:",
        ),
    },
    "to_lock": {
        "a node is always true": ("while node.parent:",),
        "each node once, in any order": (
            "return path[::-1]",
            "return list(dict.fromkeys(path))",
            "path.insert(0, node)",
        ),
    },
    "evict": {
        "a tree has leaves, each once": (
            "if len(leaves) == 0: return ...",
            "if len(leaves) > len({*leaves}): return ...",
            "free = [leaf for leaf in list(dict.fromkeys(leaves)) if leaf.lock_ref == 0]",
            "return min(list(dict.fromkeys(free)), key=lambda leaf: leaf.last_used)",
        ),
        "no two leaves were last used at the same time": (
            "free = [leaf for leaf in reversed(list(leaves)) if leaf.lock_ref == 0]",
            "free = [leaf for leaf in sorted(leaves) if leaf.lock_ref == 0]",
            "free = [leaf for leaf in leaves[::-1] if leaf.lock_ref == 0]",
            "return min(sorted(free), key=lambda leaf: leaf.last_used)",
            "return min(free[::-1], key=lambda leaf: leaf.last_used)",
        ),
        "there are no locks below 0": (
            "free = [leaf for leaf in leaves if min(1, leaf.lock_ref) == 0]",
            "free = [leaf for leaf in leaves if (leaf.lock_ref) <= (0)]",
            "free = [leaf for leaf in leaves if (leaf.lock_ref) is (0)]",
            "free = [leaf for leaf in leaves if bool(leaf.lock_ref) == bool(0)]",
        ),
        "the order of the keys is the same": (
            "return min(free, key=lambda leaf: (leaf.last_used + 1))",
            "return min(free, key=lambda leaf: (leaf.last_used - 1))",
        ),
    },
    "pages_short": {
        "a page has a token": ("if page_size + 0 == 0: return ...",),
        "a sum has no order": (
            "for one in reversed(list(running)):",
            "for one in sorted(running):",
            "for one in running[::-1]:",
        ),
        "0 or less: none, as the text says": ("return max(0, lacking - free)",),
        "a bound that is there already": (
            "lacking += max(0, max(0, -(-one.length // page_size) - one.num_pages))",
        ),
        "what is negated is below 0": (
            "lacking += max(0, -(min(1, -one.length // page_size)) - one.num_pages)",
        ),
    },
    "choose_victim": {
        "a request decodes, and none twice": (
            "if len(running) == 0: return ...",
            "if len(running) > len({*running}): return ...",
            "latest = reversed(list(dict.fromkeys(running)))",
            "return min(list(dict.fromkeys(latest)), "
            "key=lambda one: (one.num_outputs, -one.prompt_len))",
        ),
        "the order of the keys is the same": (
            "return min(latest, key=lambda one: ((one.num_outputs + 1), -one.prompt_len))",
            "return min(latest, key=lambda one: ((one.num_outputs - 1), -one.prompt_len))",
            "return min(latest, key=lambda one: (one.num_outputs, -(one.prompt_len + 1)))",
            "return min(latest, key=lambda one: (one.num_outputs, -(one.prompt_len - 1)))",
        ),
    },
    "may_free": {
        "`...` is true, as the right answer is": (
            "if last_step + 0 == 0: return ...",
            "if launched + 0 == 0: return ...",
            "if last_step + 0 == returned + 0: return ...",
            "if last_step + 0 < returned + 0: return ...",
            "if launched + 0 == returned + 0: return ...",
        ),
        "only a launched step can name a request, or return": (
            "if last_step + 0 > launched + 0: return ...",
            "if launched + 0 < returned + 0: return ...",
        ),
    },
    "kept": {
        "in no run is a limit 2 or less, or reached": (
            "if max_new_tokens + 0 == 0: return ...",
            "if max_new_tokens + 0 == 1: return ...",
            "if max_new_tokens + 0 == 2: return ...",
            "if num_outputs + 0 == max_new_tokens + 0: return ...",
            "if num_outputs + 0 > max_new_tokens + 0: return ...",
            "return (max(0, max_new_tokens - num_outputs)) / 3",
            "return (abs(max_new_tokens - num_outputs)) / 3",
        ),
        "every rule with enough points is right: a token more or less": (
            "return (max_new_tokens - num_outputs) / 4",
            "return ((max_new_tokens - num_outputs) / 3 + 1)",
            "return ((max_new_tokens - num_outputs) / 3 - 1)",
            "return int((max_new_tokens - num_outputs) / 3)",
            "return round((max_new_tokens - num_outputs) / 3)",
            "return ((max_new_tokens - num_outputs + 1)) / 3",
            "return ((max_new_tokens - num_outputs - 1)) / 3",
            "return ((max_new_tokens + 1) - num_outputs) / 3",
            "return ((max_new_tokens - 1) - num_outputs) / 3",
            "return ((max_new_tokens // 2 * 2) - num_outputs) / 3",
            "return (max_new_tokens - (num_outputs + 1)) / 3",
            "return (max_new_tokens - (num_outputs - 1)) / 3",
            "return (max_new_tokens - (num_outputs // 2 * 2)) / 3",
        ),
    },
    "rides": {
        "a chunk that is about to run has a prompt": ("if len(prompt_pages) == 0: return ...",),
        "a sum has no order": (
            "return sum(sorted(prompt_pages)) + sum(decode_pages) <= free",
            "return sum(prompt_pages[::-1]) + sum(decode_pages) <= free",
            "return sum(prompt_pages) + sum(sorted(decode_pages)) <= free",
            "return sum(prompt_pages) + sum(decode_pages[::-1]) <= free",
        ),
    },
    "longest_pause": {
        "`how` is one of four words": (
            "if len(how) == 0: return ...",
            "if len(how) == 1: return ...",
            "if len(how) == 2: return ...",
        ),
        "a prompt is longer than a chunk, a chunk than the decodes, and no step takes 0 ms": (
            "if prompt + 0 == 0: return ...",
            "if prompt + 0 == 1: return ...",
            "if prompt + 0 == 2: return ...",
            "if chunk + 0 == 0: return ...",
            "if chunk + 0 == 1: return ...",
            "if running + 0 == 0: return ...",
            "if base + 0 == 0: return ...",
            "if prompt + 0 == chunk + 0: return ...",
            "if prompt + 0 < chunk + 0: return ...",
            "if prompt + 0 == running + 0: return ...",
            "if prompt + 0 < running + 0: return ...",
            "if chunk + 0 == running + 0: return ...",
            "if chunk + 0 < running + 0: return ...",
        ),
        "no other of the four words is so": (
            'if len(how) == len("one piece"):',
            'if set(how) == set("one piece"):',
            'if set(how) <= set("one piece"):',
            'if (how) >= ("one piece"):',
            'if len(how) == len("chunks"):',
            'if set(how) == set("chunks"):',
            'if set(how) <= set("chunks"):',
            'if (how) is ("chunks"):',
            'if set(how) == set("mixed"):',
            'if set(how) <= set("mixed"):',
            'if (how) >= ("mixed"):',
            'if (how) is ("mixed"):',
        ),
        "a negative number is below 1": (
            "return -(min(1, -prompt // chunk)) * base + per_token * prompt + decode",
        ),
    },
    "prompts_a_second": {
        "a prompt is a whole number of chunks, and no step takes 0 ms": (
            "if prompt + 0 == 0: return ...",
            "if chunk + 0 == 0: return ...",
            "if base + 0 == 0: return ...",
            "if prompt + 0 < chunk + 0: return ...",
        ),
        "a prompt is a whole number of chunks; a negative number is below 1": (
            "read = -(-(-(-prompt) // chunk)) * base + per_token * prompt",
            "read = -(min(1, -prompt // chunk)) * base + per_token * prompt",
        ),
    },
    "chunk_size": {
        "every rule with enough points is right": (
            "return (48 + 8 * waiting + 1)",
            "return (48 + 8 * waiting - 1)",
            "return 48 + (8 * waiting + 1)",
            "return 48 + (8 * waiting - 1)",
            "return 48 + 8 * (waiting + 1)",
            "return 48 + 8 * (waiting // 2 * 2)",
            "return 48 + 9 * waiting",
            "return 49 + 8 * waiting",
        ),
    },
    "bubble": {
        "there is a batch, a stage, and work in it": (
            "if batches + 0 == 0: return ...",
            "if stages + 0 == 0: return ...",
            "if stage_ms + 0 == 0: return ...",
        ),
        "a share is from 0 to 1": (
            "return min(1, 1 - stage_ms / step_ms)",
            "return max(0, 1 - stage_ms / step_ms)",
            "return abs(1 - stage_ms / step_ms)",
            "return 1 - min(1, stage_ms / step_ms)",
        ),
    },
    "accept": {
        "one token more is sampled than there are drafts": ("if len(sampled) == 0: return ...",),
        "the count begins at 0 and ends before the last of `sampled`": (
            "while count < len(sorted(drafts)) and drafts[count] == sampled[count]:",
            "while count < len(drafts[::-1]) and drafts[count] == sampled[count]:",
            "while count < len(drafts) and drafts[count] == sampled[:-1][count]:",
            "while (count) != (len(drafts)) and drafts[count] == sampled[count]:",
        ),
    },
    "bubble_fraction": {
        "there is an op": ("if len(ops) == 0: return ...",),
        "ops are sorted by their start, and the order of equal ones counts for nothing": (
            "first = done = min(start for stream, start, end in reversed(list(ops)))",
            "first = done = min(start for stream, start, end in sorted(ops))",
            "first = done = min(start for stream, start, end in ops[::-1])",
            "first = done = min(start for stream, start, end in list(dict.fromkeys(ops)))",
            "for stream, start, end in sorted(sorted(ops), key=lambda op: op[1]):",
            "for stream, start, end in sorted(ops[::-1], key=lambda op: op[1]):",
            "for stream, start, end in sorted(list(dict.fromkeys(ops)), key=lambda op: op[1]):",
            "for stream, start, end in sorted(ops, key=lambda op: (op[1] + 1)):",
            "for stream, start, end in sorted(ops, key=lambda op: (op[1] - 1)):",
            "for stream, start, end in sorted(ops, key=lambda op: op[::-1][1]):",
            "for stream, start, end in sorted(ops, key=lambda op: list(dict.fromkeys(op))[1]):",
            "for stream, start, end in sorted(ops, key=lambda op: op[:-1][1]):",
        ),
        "the order of these two lines counts for nothing": ("idle = 0",),
        "no op ends before it starts, so these are from 0 to 1": (
            "return min(1, idle / (done - first))",
            "return idle / (max(0, done - first))",
            "return idle / (abs(done - first))",
            "idle += max(0, max(0, start - done))",
        ),
    },
    "blocking_call": {
        "the order of equal sums and of calls counts for nothing, and no sum is equal to another": (
            "for call, within, ms in reversed(list(calls)):",
            "for call, within, ms in sorted(calls):",
            "for call, within, ms in calls[::-1]:",
            "return max(blocked, key=blocked.get) if sorted(blocked) else None",
            "return max(blocked, key=blocked.get) if list(dict.fromkeys(blocked)) else None",
            "return max(sorted(blocked), key=blocked.get) if blocked else None",
            "return max(list(dict.fromkeys(blocked)), key=blocked.get) if blocked else None",
        ),
        "True is 1": (
            'if min(1, call.endswith("Synchronize")) or ("Memcpy" in call and '
            '"Async" not in call):',
        ),
        "no name has these words at its beginning": (
            'if call[1:].endswith("Synchronize") or ("Memcpy" in call and "Async" not in call):',
            'if call.endswith("Synchronize") or ("Memcpy" in call[1:] and "Async" not in call):',
            'if call.endswith("Synchronize") or ("Memcpy" in call and "Async" not in call[1:]):',
        ),
        "each sum is one more": ("blocked[call, within] = blocked.get((call, within), 1) + ms",),
    },
    "launched_ahead": {
        "no step is there twice": ("if len(steps) > len({*steps}): return ...",),
        "steps are in order, each of them once, and the shorter list ends the pairs": (
            "pairs = zip(sorted(steps), steps[1:])",
            "pairs = zip(list(dict.fromkeys(steps)), steps[1:])",
            "pairs = zip(steps[:-1], steps[1:])",
            "pairs = zip(steps, sorted(steps)[1:])",
            "pairs = zip(steps, list(dict.fromkeys(steps))[1:])",
            "return sum(later[0] < earlier[2] for earlier, later in reversed(list(pairs)))",
            "return sum(sorted(later)[0] < earlier[2] for earlier, later in pairs)",
            "return sum(list(dict.fromkeys(later))[0] < earlier[2] for earlier, later in pairs)",
            "return sum(later[:1][0] < earlier[2] for earlier, later in pairs)",
            "return sum(later[:-1][0] < earlier[2] for earlier, later in pairs)",
            "return sum(later[0] < sorted(earlier)[2] for earlier, later in pairs)",
            "return sum(later[0] < earlier[2] for earlier, later in sorted(pairs))",
            "return sum(later[0] < earlier[2] for earlier, later in list(dict.fromkeys(pairs)))",
        ),
    },
    "input_ids": {
        "whether there is a token, and the last one, are the same": (
            "known = seq.answer[-1] if sorted(seq.answer) else 0",
            "known = seq.answer[-1] if seq.answer[::-1] else 0",
            "known = seq.answer[-1] if list(dict.fromkeys(seq.answer)) else 0",
            "known = seq.answer[-1] if seq.answer[:1] else 0",
            "known = list(dict.fromkeys(seq.answer))[-1] if seq.answer else 0",
        ),
        "a place is negative": (
            "ids.append(min(1, -1 - seq.slot) if seq.in_flight > 1 else known)",
        ),
        "`in_flight` counts the token of this step": (
            "ids.append(-1 - seq.slot if (seq.in_flight) != (1) else known)",
        ),
    },
    "generate_overlapped": {
        "no sequence is twice in a step, and only whether there is one counts": (
            "while last or not min(1, engine.is_finished):",
            "step = engine.launch(seqs, engine.input_ids(seqs)) if seqs[::-1] else None",
            "step = engine.launch(seqs, engine.input_ids(seqs)) if "
            "list(dict.fromkeys(seqs)) else None",
            "step = engine.launch(seqs, engine.input_ids(seqs)) if seqs[:1] else None",
            "step = engine.launch(list(dict.fromkeys(seqs)), "
            "engine.input_ids(seqs)) if seqs else None",
            "step = engine.launch(seqs, "
            "engine.input_ids(list(dict.fromkeys(seqs)))) if seqs else None",
        ),
    },
    "race": {
        "without two acts there is no race": ("- return None",),
        "any of the races may be found, in any order; an act has three different parts": (
            "touches = [(i, *act) for i, act in reversed(list(enumerate(program))) "
            "if act[1] in TOUCHES]",
            "touches = [(i, *list(dict.fromkeys(act))) for i, act in "
            "enumerate(program) if act[1] in TOUCHES]",
            "touches = [(i, *act) for i, act in enumerate(program) if act[::-1][1] in TOUCHES]",
            "touches = [(i, *act) for i, act in enumerate(program) if "
            "list(dict.fromkeys(act))[1] in TOUCHES]",
            "touches = [(i, *act) for i, act in enumerate(program) if act[:-1][1] in TOUCHES]",
            "touches = [(i, *act) for i, act in enumerate(program) if act[1] in sorted(TOUCHES)]",
            "touches = [(i, *act) for i, act in enumerate(program) if act[1] in TOUCHES[::-1]]",
            "touches = [(i, *act) for i, act in enumerate(program) if act[1] in "
            "list(dict.fromkeys(TOUCHES))]",
            "for j, other, its_kind, (its_memory, its_cells) in reversed(list(touches)):",
            "for j, other, its_kind, (its_memory, its_cells) in list(touches)[1:]:",
            "for j, other, its_kind, (its_memory, its_cells) in sorted(touches):",
            "for j, other, its_kind, (its_memory, its_cells) in touches[::-1]:",
            "for j, other, its_kind, (its_memory, its_cells) in list(dict.fromkeys(touches)):",
            "for j, other, its_kind, (its_memory, its_cells) in touches[1:]:",
            "for i, lane, kind, (memory, cells) in reversed(list(touches)):",
            "for i, lane, kind, (memory, cells) in list(touches)[:-1]:",
            "for i, lane, kind, (memory, cells) in sorted(touches):",
            "for i, lane, kind, (memory, cells) in touches[::-1]:",
            "for i, lane, kind, (memory, cells) in list(dict.fromkeys(touches)):",
            "for i, lane, kind, (memory, cells) in touches[:-1]:",
        ),
        "an act is on its own lane": (
            'if i > j or lane == other or kind == its_kind == "read":',
            'if i >= j + 1 or lane == other or kind == its_kind == "read":',
            'if (i - 1) >= j or lane == other or kind == its_kind == "read":',
            'if (i // 2 * 2) >= j or lane == other or kind == its_kind == "read":',
        ),
        "two acts of a lane are in order already": (
            'if ((i >= j) or (kind == its_kind == "read")):',
            'if i >= j or 0 == other or kind == its_kind == "read":',
            'if i >= j or 1 == other or kind == its_kind == "read":',
            'if i >= j or 2 == other or kind == its_kind == "read":',
            'if i >= j or 4 == other or kind == its_kind == "read":',
            'if i >= j or sorted(lane) == other or kind == its_kind == "read":',
            'if i >= j or lane[::-1] == other or kind == its_kind == "read":',
            'if i >= j or list(dict.fromkeys(lane)) == other or kind == its_kind == "read":',
            'if i >= j or lane[:1] == other or kind == its_kind == "read":',
            'if i >= j or lane[1:] == other or kind == its_kind == "read":',
            'if i >= j or lane[:-1] == other or kind == its_kind == "read":',
            'if i >= j or program == other or kind == its_kind == "read":',
            'if i >= j or clocks == other or kind == its_kind == "read":',
            'if i >= j or touches == other or kind == its_kind == "read":',
            'if i >= j or j == other or kind == its_kind == "read":',
            'if i >= j or its_kind == other or kind == its_kind == "read":',
            'if i >= j or its_memory == other or kind == its_kind == "read":',
            'if i >= j or its_cells == other or kind == its_kind == "read":',
            'if i >= j or i == other or kind == its_kind == "read":',
            'if i >= j or kind == other or kind == its_kind == "read":',
            'if i >= j or memory == other or kind == its_kind == "read":',
            'if i >= j or cells == other or kind == its_kind == "read":',
            'if i >= j or lane == 0 or kind == its_kind == "read":',
            'if i >= j or lane == 1 or kind == its_kind == "read":',
            'if i >= j or lane == 2 or kind == its_kind == "read":',
            'if i >= j or lane == 4 or kind == its_kind == "read":',
            'if i >= j or lane == sorted(other) or kind == its_kind == "read":',
            'if i >= j or lane == other[::-1] or kind == its_kind == "read":',
            'if i >= j or lane == list(dict.fromkeys(other)) or kind == its_kind == "read":',
            'if i >= j or lane == other[:1] or kind == its_kind == "read":',
            'if i >= j or lane == other[1:] or kind == its_kind == "read":',
            'if i >= j or lane == other[:-1] or kind == its_kind == "read":',
            'if i >= j or lane == program or kind == its_kind == "read":',
            'if i >= j or lane == clocks or kind == its_kind == "read":',
            'if i >= j or lane == touches or kind == its_kind == "read":',
            'if i >= j or lane == j or kind == its_kind == "read":',
            'if i >= j or lane == its_kind or kind == its_kind == "read":',
            'if i >= j or lane == its_memory or kind == its_kind == "read":',
            'if i >= j or lane == its_cells or kind == its_kind == "read":',
            'if i >= j or lane == i or kind == its_kind == "read":',
            'if i >= j or lane == kind or kind == its_kind == "read":',
            'if i >= j or lane == memory or kind == its_kind == "read":',
            'if i >= j or lane == cells or kind == its_kind == "read":',
            'if i >= j or set(lane) == set(other) or kind == its_kind == "read":',
            'if i >= j or (lane) is (other) or kind == its_kind == "read":',
        ),
        "sets have no order, and no two memories have names of the same letters": (
            "if memory != its_memory or not set(sorted(cells)) & set(its_cells):",
            "if memory != its_memory or not set(cells[::-1]) & set(its_cells):",
            "if memory != its_memory or not set(list(dict.fromkeys(cells))) & set(its_cells):",
            "if memory != its_memory or not set(cells) & set(sorted(its_cells)):",
            "if memory != its_memory or not set(cells) & set(its_cells[::-1]):",
            "if memory != its_memory or not set(cells) & set(list(dict.fromkeys(its_cells))):",
        ),
        "no act learns from a touch, and the first act of a race is not the last of all": (
            "if clocks[i][lane] >= clocks[j].get(lane, 0):",
            "if clocks[i][lane] > clocks[j].get(lane, 0) - 1:",
            "if (clocks[i][lane] + 1) > clocks[j].get(lane, 0):",
            "if clocks[:-1][i][lane] > clocks[j].get(lane, 0):",
        ),
    },
    "happens_before": {
        "the order of these lines counts for nothing, and a known lane has an act": (
            "giver = {}",
            "for other, count in reversed(list(giver.items())):",
            "clocks.append(clock)",
            "clock[other] = max(clock.get(other, 1), count)",
        ),
        "no other kind is so": (
            'if set(kind) == set("begin"):',
            'if set(kind) <= set("begin"):',
            'if (kind) <= ("begin"):',
            'if (kind) is ("begin"):',
            'if len(kind) == len("launch"):',
            'if set(kind) == set("launch"):',
            'if set(kind) <= set("launch"):',
            'if (kind) is ("launch"):',
            'elif set(kind) == set("wait"):',
            'elif set(kind) <= set("wait"):',
            'elif (kind) is ("wait"):',
        ),
    },
    "must_wait": {
        "both are True or False": (
            "if has_grammar + 0 == 2: return ...",
            "if has_grammar + 0 > 2: return ...",
            "if has_penalties + 0 == 2: return ...",
            "if has_penalties + 0 > 2: return ...",
        ),
        "True is 1, and no count is negative": (
            "return min(1, unknown) > 0 and (has_grammar or has_penalties)",
            "return unknown > 0 and (min(1, has_grammar) or has_penalties)",
            "return unknown > 0 and (has_grammar or min(1, has_penalties))",
            "return (unknown) != (0) and (has_grammar or has_penalties)",
        ),
    },
    "fill": {
        "no request is twice in a step": (
            "if len(last_rids) > len({*last_rids}): return ...",
            "ids = [*ids[:-1], sampled[list(dict.fromkeys(last_rids)).index(rid)]]",
        ),
        "a known id is at least 0, and only the last one may be a -1": (
            "if min(1, ids[-1]) == -1:",
            "if list(dict.fromkeys(ids))[-1] == -1:",
            "if (ids[-1]) <= (-1):",
            "if (ids[-1]) is (-1):",
        ),
    },
    "ends_in_flight": {
        "an answer counts by its truth, and these are true": (
            "if length + 0 == 0: return ...",
            "if length + 0 == 1: return ...",
            "if computed + 0 == length + 0: return ...",
            "if computed + 0 > length + 0: return ...",
            "if placeholders + 0 > length + 0: return ...",
            "if placeholders + 0 == length + 0: return ...",
            "if computed + 0 < placeholders + 0: return ...",
        ),
    },
    "batch_queue_loop": {
        "small whole numbers are the same objects": (
            "if queue and ((len(queue)) is (depth) or not batch):",
        ),
    },
    "waiting_loop": {"a generator goes on after its `yield`": ("yield",)},
    "diagnose": {"step 4 takes a wrong token, too": ('"B": ("identity", "forward", 4),',)},
    "capstone": {
        "the order of these two counts for nothing": (
            "for queue in reversed(list((self.waiting, self.running))):",
            "left, free, rows = self.add(prompts, req, left), free - need, rows - 1",
            "step, delay = None, False",
            "yield",
        ),
        "the order of a step's decodes counts for nothing": ("self.running.insert(0, req)",),
        "the sampling of each step may be launched alone": (
            "delay = (engine.must_delay_sample(batch) + 1)",
        ),
    },
}
