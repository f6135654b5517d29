"""The exercises of the lessons, solved; and mistakes that learners make, with what is said."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from math import ceil
from typing import Any, NamedTuple

from minisched import learn

# -- lesson 1 --------------------------------------------------------------------------------------


def my_loop(engine: Any) -> Any:
    last = None
    while True:
        engine.recv_requests()
        batch = engine.get_next_batch_to_run()
        pending = engine.run_batch(batch) if batch else None
        if last:
            engine.process_batch_result(last)
        elif not batch:
            engine.on_idle()
        last = pending
        yield


def loop_with_a_queue(engine: Any) -> Any:
    queue: list[Any] = []
    while True:
        engine.recv_requests()
        batch = engine.get_next_batch_to_run()
        if batch:
            queue.append(engine.run_batch(batch))
        if queue and (len(queue) > 1 or not batch):
            engine.process_batch_result(queue.pop(0))
        elif not queue:
            engine.on_idle()
        yield


def loop_that_takes_turns(engine: Any) -> Any:
    while True:
        engine.recv_requests()
        batch = engine.get_next_batch_to_run()
        if batch:
            engine.process_batch_result(engine.run_batch(batch))
        else:
            engine.on_idle()
        yield


def loop_that_processes_first(engine: Any) -> Any:
    last = None
    while True:
        engine.recv_requests()
        if last:
            engine.process_batch_result(last)
        batch = engine.get_next_batch_to_run()
        last = engine.run_batch(batch) if batch else None
        if not batch:
            engine.on_idle()
        yield


def loop_in_the_wrong_order(engine: Any) -> Any:
    stack: list[Any] = []
    while True:
        engine.recv_requests()
        batch = engine.get_next_batch_to_run()
        if batch:
            stack.append(engine.run_batch(batch))
        if stack and (len(stack) > 1 or not batch):
            engine.process_batch_result(stack.pop())
        elif not stack:
            engine.on_idle()
        yield


def loop_that_forgets_the_last_step(engine: Any) -> Any:
    last = None
    while True:
        engine.recv_requests()
        batch = engine.get_next_batch_to_run()
        if batch:
            pending = engine.run_batch(batch)
            if last:
                engine.process_batch_result(last)
            last = pending
        else:
            engine.on_idle()
        yield


def loop_that_processes_twice(engine: Any) -> Any:
    last = None
    while True:
        engine.recv_requests()
        batch = engine.get_next_batch_to_run()
        if last:
            engine.process_batch_result(last)
        if batch:
            last = engine.run_batch(batch)
        elif not last:
            engine.on_idle()
        yield


def loop_two_turns_later(engine: Any) -> Any:
    queue: list[Any] = []
    while True:
        engine.recv_requests()
        batch = engine.get_next_batch_to_run()
        if batch:
            queue.append(engine.run_batch(batch))
        if len(queue) > 2 or (queue and not batch):
            engine.process_batch_result(queue.pop(0))
        elif not batch:
            engine.on_idle()
        yield


def loop_that_is_never_idle(engine: Any) -> Any:
    last = None
    while True:
        engine.recv_requests()
        batch = engine.get_next_batch_to_run()
        pending = engine.run_batch(batch) if batch else None
        if last:
            engine.process_batch_result(last)
        last = pending
        yield


def loop_that_runs_nothing(engine: Any) -> Any:
    last = None
    while True:
        engine.recv_requests()
        pending = engine.run_batch(engine.get_next_batch_to_run())
        if last:
            engine.process_batch_result(last)
        last = pending
        yield


def loop_without_a_yield(engine: Any) -> None:
    while True:
        engine.recv_requests()


def loop_that_never_yields(engine: Any) -> Any:
    while True:
        engine.recv_requests()
    yield


def loop_that_swallows_everything(engine: Any) -> Any:
    while True:
        with suppress(Exception):
            engine.no_such_phase()
    yield


def loop_that_catches_all(engine: Any) -> Any:
    while True:
        try:
            engine.recv_requests()
            engine.run_batch(engine.get_next_batch_to_run())
        except:  # noqa: E722
            continue
        yield


def loop_that_catches_the_guard(engine: Any) -> Any:
    while True:
        try:
            while True:
                pass
        except BaseException:
            pass
        yield


def loop_that_will_not_close(engine: Any) -> Any:
    while True:
        try:
            yield
        except GeneratorExit:
            while True:
                pass


def loop_that_ends(engine: Any) -> Any:
    engine.recv_requests()
    yield


def loop_with_a_typo(engine: Any) -> Any:
    while True:
        engine.recv_request()
        yield


def step_time(host: float, device: float, copy: float, in_flight: int) -> float:
    around = host + device + copy
    return around if in_flight == 1 else max(host, device, copy, around / 2)


def only_the_busiest(host: float, device: float, copy: float, in_flight: int) -> float:
    return host + device + copy if in_flight == 1 else max(host, device)


def only_the_way_round(host: float, device: float, copy: float, in_flight: int) -> float:
    return (host + device + copy) / in_flight


def never_the_copy(host: float, device: float, copy: float, in_flight: int) -> float:
    around = host + device + copy
    return around if in_flight == 1 else max(host, device, around / 2)


def no_number(host: float, device: float, copy: float, in_flight: int) -> Any:
    return None


def division_by_zero(host: float, device: float, copy: float, in_flight: int) -> float:
    return host / (in_flight - 1)


# -- lesson 2 --------------------------------------------------------------------------------------


def resolve(ids: list[int], token_ids_map: list[int]) -> list[int]:
    return [token_ids_map[-token] if token < 0 else token for token in ids]


def resolve_the_token_pool(ids: list[int], token_ids_map: list[int]) -> list[int]:
    return [token_ids_map[token] for token in ids]


def resolve_from_the_end(ids: list[int], token_ids_map: list[int]) -> list[int]:
    return [token_ids_map[token] if token < 0 else token for token in ids]


def resolve_all_as_slots(ids: list[int], token_ids_map: list[int]) -> list[int]:
    return [token_ids_map[abs(token)] for token in ids]


def resolve_by_the_first(ids: list[int], token_ids_map: list[int]) -> list[int]:
    return [token_ids_map[-token] for token in ids] if ids[0] < 0 else ids


def resolve_the_zero(ids: list[int], token_ids_map: list[int]) -> list[int]:
    return [token_ids_map[-token] if token <= 0 else token for token in ids]


def resolve_only_placeholders(ids: list[int], token_ids_map: list[int]) -> list[int]:
    return [token_ids_map[-token] for token in ids if token < 0]


def resolve_to_nothing(ids: list[int], token_ids_map: list[int]) -> Any:
    ids[:] = [token_ids_map[-token] if token < 0 else token for token in ids]


def alloc(future_ct: int, num_reqs: int, limit: int) -> Any:
    return range(future_ct + 1, future_ct + 1 + num_reqs), (future_ct + num_reqs) % limit


def alloc_that_wraps_each_slot(future_ct: int, num_reqs: int, limit: int) -> Any:
    slots = [(future_ct + at) % limit + 1 for at in range(num_reqs)]
    return slots, (future_ct + num_reqs) % limit


def alloc_that_never_wraps(future_ct: int, num_reqs: int, limit: int) -> Any:
    return range(future_ct + 1, future_ct + 1 + num_reqs), future_ct + num_reqs


def alloc_that_stands_still(future_ct: int, num_reqs: int, limit: int) -> Any:
    return range(1, 1 + num_reqs), future_ct


def alloc_up_to_the_limit(future_ct: int, num_reqs: int, limit: int) -> Any:
    behind = future_ct + num_reqs
    return range(future_ct + 1, behind + 1), 0 if behind > limit else behind


def alloc_modulo_one_more(future_ct: int, num_reqs: int, limit: int) -> Any:
    slots = [(future_ct + at) % (limit + 1) + 1 for at in range(num_reqs)]
    return slots, (future_ct + num_reqs) % (limit + 1)


def alloc_too_few(future_ct: int, num_reqs: int, limit: int) -> Any:
    return range(future_ct + 1, future_ct + num_reqs), (future_ct + num_reqs) % limit


def alloc_from_zero(future_ct: int, num_reqs: int, limit: int) -> Any:
    return range(future_ct, future_ct + num_reqs), (future_ct + num_reqs) % limit


def alloc_that_counts_batches(future_ct: int, num_reqs: int, limit: int) -> Any:
    return range(future_ct + 1, future_ct + 1 + num_reqs), (future_ct + 1) % limit


def alloc_one_for_all(future_ct: int, num_reqs: int, limit: int) -> Any:
    return [future_ct + 1] * num_reqs, (future_ct + 1) % limit


def alloc_without_a_counter(future_ct: int, num_reqs: int, limit: int) -> Any:
    return range(future_ct + 1, future_ct + 1 + num_reqs)


def alloc_for_ever(future_ct: int, num_reqs: int, limit: int) -> Any:
    while future_ct > -1:
        pass


def limit(max_running_requests: int, context_len: int, chunk: int) -> int:
    return max_running_requests * (3 + ceil(context_len / chunk))


def limit_before_13713(max_running_requests: int, context_len: int, chunk: int) -> int:
    return 3 * max_running_requests


def limit_for_one_long_prompt(max_running_requests: int, context_len: int, chunk: int) -> int:
    return 3 * max_running_requests + ceil(context_len / chunk)


def limit_of_ten_each(max_running_requests: int, context_len: int, chunk: int) -> int:
    return 10 * max_running_requests


def limit_of_a_sum(max_running_requests: int, context_len: int, chunk: int) -> int:
    return 2 * max_running_requests + context_len // chunk * 2


def limit_rounded_down(max_running_requests: int, context_len: int, chunk: int) -> int:
    return max_running_requests * (context_len // chunk)


def limit_of_the_others(max_running_requests: int, context_len: int, chunk: int) -> int:
    return max_running_requests * (context_len // chunk) - max_running_requests + 1


def limit_for_these_runs(max_running_requests: int, context_len: int, chunk: int) -> int:
    return max_running_requests * (1 + min(5000, context_len) // chunk)


def limit_without_splits(max_running_requests: int, context_len: int, chunk: int) -> int:
    return max_running_requests * ceil(context_len / chunk)


def limit_one_each(max_running_requests: int, context_len: int, chunk: int) -> int:
    return max_running_requests


def limit_of_a_fraction(max_running_requests: int, context_len: int, chunk: int) -> float:
    return max_running_requests * context_len / chunk


def limit_without_end(max_running_requests: int, context_len: int, chunk: int) -> int:
    return 10**9


# -- lesson 3 --------------------------------------------------------------------------------------


def generate(step: Any, first: int, count: int, async_eval: Any, host_work: Any) -> list[int]:
    tokens, y = [], step(first)
    async_eval(y)
    for _ in range(count):
        following = step(y)
        async_eval(following)
        tokens.append(y.item())
        host_work(tokens[-1])
        y = following
    return tokens


def generate_too_late(step: Any, first: int, count: int, async_eval: Any, host_work: Any) -> Any:
    tokens, y = [], step(first)
    for _ in range(count):
        following = step(y)
        tokens.append(y.item())
        host_work(tokens[-1])
        async_eval(following)
        y = following
    return tokens


def generate_read_first(step: Any, first: int, count: int, async_eval: Any, host_work: Any) -> Any:
    tokens, y = [], step(first)
    async_eval(y)
    for _ in range(count):
        tokens.append(y.item())
        y = step(y)
        async_eval(y)
        host_work(tokens[-1])
    return tokens


def generate_all_at_once(step: Any, first: int, count: int, async_eval: Any, host_work: Any) -> Any:
    ys = [step(first)]
    for _ in range(count - 1):
        ys.append(step(ys[-1]))
    async_eval(ys[-1])
    tokens = []
    for y in ys:
        tokens.append(y.item())
        host_work(tokens[-1])
    return tokens


def generate_skipping(step: Any, first: int, count: int, async_eval: Any, host_work: Any) -> Any:
    tokens, y = [], step(first)
    for _ in range(count):
        y = step(y)
        async_eval(y)
        tokens.append(y.item())
        host_work(tokens[-1])
    return tokens


def generate_idly(step: Any, first: int, count: int, async_eval: Any, host_work: Any) -> Any:
    tokens, y = [], step(first)
    async_eval(y)
    for _ in range(count):
        following = step(y)
        async_eval(following)
        tokens.append(y.item())
        y = following
    return tokens


def generate_then_work(step: Any, first: int, count: int, async_eval: Any, host_work: Any) -> Any:
    tokens = generate(step, first, count, async_eval, lambda token: None)
    for token in tokens:
        host_work(token)
    return tokens


def generate_lazily(step: Any, first: int, count: int, async_eval: Any, host_work: Any) -> Any:
    tokens, y = [], step(first)
    for _ in range(count):
        async_eval(y)
        tokens.append(y)
        host_work(y.item())
        y = step(y)
    return tokens


def generate_on_numbers(step: Any, first: int, count: int, async_eval: Any, host_work: Any) -> Any:
    tokens, token = [], first
    for _ in range(count):
        token = step(token).item()
        tokens.append(token)
    return tokens


def turn(engine: Any, pending: Any) -> Any:
    batch = engine.chain(pending.batch)
    following = engine.run_batch(batch, pending) if batch else None
    engine.process_batch_result(pending)
    return following


def turn_of_the_sketch(engine: Any, pending: Any) -> Any:
    engine.process_batch_result(pending)
    batch = engine.chain(pending.batch)
    return engine.run_batch(batch) if batch else None


def turn_not_told(engine: Any, pending: Any) -> Any:
    batch = engine.chain(pending.batch)
    following = engine.run_batch(batch) if batch else None
    engine.process_batch_result(pending)
    return following


def turn_that_never_reads(engine: Any, pending: Any) -> Any:
    batch = engine.chain(pending.batch)
    return engine.run_batch(batch, pending) if batch else None


def turn_that_gives_nothing(engine: Any, pending: Any) -> Any:
    batch = engine.chain(pending.batch)
    if batch:
        engine.run_batch(batch, pending)
    engine.process_batch_result(pending)


def turn_that_chains_nothing(engine: Any, pending: Any) -> Any:
    engine.process_batch_result(pending)


def turn_that_gives_a_batch(engine: Any, pending: Any) -> Any:
    engine.process_batch_result(pending)
    return pending.batch


def may_chain(batch: list[str], waiting: list[str], ended: list[str]) -> bool:
    return not waiting and not ended


def chain_for_ever(batch: list[str], waiting: list[str], ended: list[str]) -> bool:
    return True


def chain_whoever_waits(batch: list[str], waiting: list[str], ended: list[str]) -> bool:
    return not ended


def chain_whoever_ended(batch: list[str], waiting: list[str], ended: list[str]) -> bool:
    return not waiting


def chain_only_two(batch: list[str], waiting: list[str], ended: list[str]) -> bool:
    return not waiting and not ended and len(batch) <= 2


def chain_never(batch: list[str], waiting: list[str], ended: list[str]) -> bool:
    return False


# -- what each is told -----------------------------------------------------------------------------


class Mistake(NamedTuple):
    """Lines that are wrong, a part of what their verdict says, and whether it draws something."""

    check: Callable[[Any], Any]
    lines: Any
    says: str
    draws: bool = True


SOLUTIONS: list[tuple[Callable[[Any], Any], Any]] = [
    (learn.check_loop, my_loop),
    (learn.check_loop, loop_with_a_queue),
    (learn.check_step_time, step_time),
    (learn.check_resolve, resolve),
    (learn.check_alloc, alloc),
    (learn.check_alloc, alloc_that_wraps_each_slot),
    (learn.check_limit, limit),
    (learn.check_generate, generate),
    (learn.check_turn, turn),
    (learn.check_may_chain, may_chain),
]
MISTAKES = [
    Mistake(learn.check_loop, loop_that_takes_turns, "it takes 17 ms a step, on average; 10 ms"),
    Mistake(
        learn.check_loop, loop_that_processes_first, "it takes 17 ms a step, on average; 10 ms"
    ),
    Mistake(learn.check_loop, loop_in_the_wrong_order, "step 2 came back, but 1 is next"),
    Mistake(
        learn.check_loop,
        loop_that_forgets_the_last_step,
        "step 1 was launched and never processed",
    ),
    Mistake(learn.check_loop, loop_that_processes_twice, "Step 1 has already been processed"),
    Mistake(learn.check_loop, loop_two_turns_later, "a queue of 3"),
    Mistake(learn.check_loop, loop_that_is_never_idle, "did not call on_idle()"),
    Mistake(learn.check_loop, loop_that_runs_nothing, "nothing to run; test `batch` first"),
    Mistake(learn.check_loop, loop_that_catches_all, "never end"),
    Mistake(learn.check_loop, loop_that_catches_the_guard, "never end", False),
    Mistake(learn.check_loop, loop_that_will_not_close, "had not ended", False),
    Mistake(learn.check_loop, loop_without_a_yield, "has no `yield`", False),
    Mistake(learn.check_loop, loop_that_never_yields, "never end", False),
    Mistake(learn.check_loop, loop_that_swallows_everything, "never end", False),
    Mistake(learn.check_loop, loop_that_ends, "came to its end after 1 turns", False),
    Mistake(learn.check_loop, loop_with_a_typo, "at your line `engine.recv_request()`", False),
    Mistake(learn.check_loop, None, "of type NoneType, but it must be a function", False),
    Mistake(learn.check_step_time, only_the_busiest, "you say 6 ms; the run took 6.5 ms"),
    Mistake(learn.check_step_time, only_the_way_round, "the run took 10 ms"),
    Mistake(learn.check_step_time, never_the_copy, "you say 16 ms; the run took 20 ms"),
    Mistake(learn.check_step_time, no_number, "not a number", False),
    Mistake(learn.check_step_time, division_by_zero, "ZeroDivisionError at your line", False),
    Mistake(learn.check_step_time, max, "can't be called", False),
    Mistake(learn.check_resolve, resolve_from_the_end, "Your lines made"),
    Mistake(learn.check_resolve, resolve_the_token_pool, "IndexError at your line"),
    Mistake(learn.check_resolve, resolve_all_as_slots, "IndexError at your line"),
    Mistake(learn.check_resolve, resolve_by_the_first, "should give [5, 47]", False),
    Mistake(learn.check_resolve, resolve_the_zero, "Step 1 was sent the id 0; your lines made"),
    Mistake(learn.check_resolve, resolve_only_placeholders, "must give a list of 1 integer"),
    Mistake(learn.check_resolve, resolve_to_nothing, "gave None"),
    Mistake(learn.check_alloc, alloc_that_never_wraps, "but slots begin at 1 again once"),
    Mistake(learn.check_alloc, alloc_up_to_the_limit, "Your alloc(12, 1, 12) gave"),
    Mistake(learn.check_alloc, alloc_modulo_one_more, "Your alloc(12, 1, 12) gave"),
    Mistake(learn.check_alloc, alloc_too_few, "a list or range of 1 slot.", False),
    Mistake(learn.check_alloc, alloc_that_stands_still, "The slot was lapped"),
    Mistake(learn.check_alloc, alloc_from_zero, "0 would be a token", False),
    Mistake(learn.check_alloc, alloc_that_counts_batches, "The slot was lapped"),
    Mistake(learn.check_alloc, alloc_one_for_all, "two rows with one slot"),
    Mistake(learn.check_alloc, alloc_without_a_counter, "must give two things", False),
    Mistake(learn.check_alloc, alloc_for_ever, "never end", False),
    Mistake(learn.check_limit, limit_before_13713, "The slot was lapped"),
    Mistake(learn.check_limit, limit_for_one_long_prompt, "The slot was lapped"),
    Mistake(learn.check_limit, limit_without_splits, "The slot was lapped"),
    Mistake(learn.check_limit, limit_of_a_sum, "The slot was lapped"),
    Mistake(learn.check_limit, limit_rounded_down, "The slot was lapped"),
    Mistake(learn.check_limit, limit_of_ten_each, "memory is dear. (19: the longest", False),
    Mistake(learn.check_limit, limit_of_the_others, "a slot for each request", False),
    Mistake(learn.check_limit, limit_for_these_runs, "prompts may stand in front", False),
    Mistake(learn.check_limit, limit_one_each, "The slot was lapped"),
    Mistake(learn.check_limit, limit_of_a_fraction, "must be a whole number", False),
    Mistake(learn.check_limit, limit_without_end, "memory is dear", False),
    Mistake(learn.check_generate, generate_too_late, "it takes 16 ms from one token to the next"),
    Mistake(learn.check_generate, generate_read_first, "it takes 11 ms from one token to the next"),
    Mistake(learn.check_generate, generate_all_at_once, "13 steps would be wasted"),
    Mistake(learn.check_generate, generate_skipping, "The 1st token is"),
    Mistake(learn.check_generate, generate_idly, "host_work was called 0 times"),
    Mistake(learn.check_generate, generate_then_work, "was read before host_work had got"),
    Mistake(learn.check_generate, generate_lazily, "lazy token of step 1, should be 78: you kept"),
    Mistake(learn.check_generate, generate_on_numbers, "it takes the first token, or a lazy one"),
    Mistake(learn.check_turn, turn_of_the_sketch, "it takes 17 ms a step, on average; 10 ms"),
    Mistake(learn.check_turn, turn_not_told, "run_batch was not told which step"),
    Mistake(learn.check_turn, turn_that_never_reads, "`turn` never processed `pending`"),
    Mistake(learn.check_turn, turn_that_gives_nothing, "launched step 3 but gave back None"),
    Mistake(learn.check_turn, turn_that_chains_nothing, "it takes 17 ms a step, on average; 10 ms"),
    Mistake(learn.check_turn, turn_that_gives_a_batch, "gave back a ScheduleBatch"),
    Mistake(learn.check_may_chain, chain_for_ever, "has ended: its place and its memory"),
    Mistake(learn.check_may_chain, chain_whoever_waits, "waited while"),
    Mistake(learn.check_may_chain, chain_whoever_ended, "has ended: its place and its memory"),
    Mistake(learn.check_may_chain, chain_only_two, "With 4 requests, host 6 ms"),
    Mistake(learn.check_may_chain, chain_never, "it takes 17 ms a step, on average; 10 ms"),
]
