"""Mutants of a solution that are as good: by exercise, and by the reason.

A mutant is named by its lines that differ. An exercise that is not here is not mutated yet.
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
        "it lies between what is needed and twice the formula, which the text allows": (
            "return max_running_requests * (4 + ceil(context_len / chunk))",
            "return max_running_requests * (0 + ceil(context_len / chunk))",
            "return (max_running_requests * (3 + ceil(context_len / chunk)) + 1)",
            "return (max_running_requests * (3 + ceil(context_len / chunk)) - 1)",
            "return (max_running_requests + 1) * (3 + ceil(context_len / chunk))",
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
            "return (set(batch) == set(running)) and pages_short == 0",
        ),
        "the pages are 0 or more": (
            "return batch == running and min(1, pages_short) == 0",
            "return batch == running and (pages_short) <= (0)",
            "return batch == running and (pages_short) is (0)",
            "return batch == running and (bool(pages_short) == bool(0))",
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
        "requests with as many cached tokens may change places": (
            "return sorted(waiting[::-1], key=lambda one: -one.cached_len)",
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
        ),
    },
    "shared_pages": {
        "the tree has found the edge by its first page, which has a token": (
            "if len(edge) == 0: return ...",
            "if len(tokens) == 0: return ...",
            "if page_size + 0 == 0: return ...",
            "same = 1",
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
            "free = [leaf for leaf in leaves if (bool(leaf.lock_ref) == bool(0))]",
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
}
