"""Mutations of the loops: when they launch, sample, and take a result in."""

from __future__ import annotations

from .mutation import mutation as m

QUEUE, LEDGER = "loops.vllm_batch_queue:", "loops.mindie_placeholder_ledger:"
PLUGIN, CONTEXT = "loops.mindie_plugin_manager:PluginManager.", "loops.mindie_plugin_context:"
MLX, RUNNER = "loops.mlx_async:", "loops.mlx_runner:MlxModelRunner."
CLIENT = "loops.overlap_thread_client:TpModelWorkerClient."
PREFILL = "loops.pd_prefill:PrefillEngine."

# fmt: off
LOOPS = (
    # -- SGLang's overlap loop ---------------------------------------------------------------------
    m("sampling does not wait for history", "identity crash",
      ("loops.overlap:overlap", "delay = engine.must_delay_sample(batch) or delay_sample",
       "delay = False")),
    m("a step with drafts does not wait for its grammar", "",
      ("loops.overlap_rules:is_disable_overlap_for_batch",
       "return missing_history if blind_draft else", 'return "" if blind_draft else'),
      equivalent="its sampling is delayed all the same, until drafts and grammar are known"),
    m("a delayed sampling builds its mask by itself", "",
      ("loops.overlap:launch_batch_sample_if_needed", "engine.update_vocab_mask(pending.batch)",
       "pass"),
      equivalent="whoever launches the sampling builds the mask that is not there, of "
      "the same tokens; only the time is not counted"),
    m("the overlap loop takes each step in before the next", "",
      ("loops.overlap:overlap", "if disable_overlap and batch:", "if False:"),
      ("loops.overlap:overlap", "if last_batch and not disable_overlap:\n"
       "            engine.process_batch_result(result_queue.popleft())  # the device "
       "runs ``batch``",
       "if batch:\n            launch_batch_sample_if_needed(engine, result_queue[-1])\n"
       "            engine.process_batch_result(result_queue.popleft())"),
      ("loops.overlap:overlap",
       "    if batch:\n            launch_batch_sample_if_needed(engine, result_queue[-1])\n"
       "        last_batch", "    last_batch"),
      equivalent="only slower: it is the serial loop, whose tokens are the same"),
    # -- its thread --------------------------------------------------------------------------------
    m("the thread does not wait until its step is laid out", "identity race crash client",
      (CLIENT + "forward_batch_generation", "self.input_queue.wait(step.sync_event)", "pass")),
    m("the thread's mask is made before the last token is known", "identity crash client",
      ("loops.overlap_thread:overlap_thread", "if not (waits and last_batch):", "if True:")),
    m("the thread does not wait for the mask", "identity crash race",
      (CLIENT + "forward_batch_generation", "self.input_queue.wait(step.sampling_info_done)",
       "pass")),
    m("the thread never says that it has launched", "deadlock",
      ("loops.overlap_thread_worker:ForwardThread.forward", "step.launch_done.set()", "pass")),
    # -- vLLM's batch queue ------------------------------------------------------------------------
    m("the newest step is harvested first", "crash",
      (QUEUE + "vllm_batch_queue", "update_from_output(engine, batch_queue.pop())",
       "update_from_output(engine, batch_queue.popleft())")),
    m("the queue holds a step more than the worker was made for", "race identity crash",
      (QUEUE + "vllm_batch_queue", "if len(batch_queue) < depth and not has_ended:",
       "if len(batch_queue) < depth + 1 and not has_ended:"),
      (QUEUE + "make_batch_queue", "deque(maxlen=depth)", "deque(maxlen=depth + 1)")),
    m("a deferred step samples when one step has come back, however many are in flight",
      "identity crash client",
      (QUEUE + "vllm_batch_queue", "            if deferred is None:\n                break\n",
       "            break\n")),
    m("no step is deferred", "identity crash client",
      (QUEUE + "vllm_batch_queue", "if engine.must_delay_sample(batch):", "if False:")),
    # -- MindIE's three ----------------------------------------------------------------------------
    m("a placeholder is filled from the end", "crash",
      (LEDGER + "PlaceholderLedger.replace_placeholder_with_token",
       "data.output_token_ids[-count] = token", "data.output_token_ids[-1] = token")),
    m("a chunk has a placeholder too", "crash",
      (LEDGER + "PlaceholderLedger.add_next_token_placeholder", "if deliver:", "if True:")),
    m("the placeholders of who was preempted stay", "crash",
      (LEDGER + "PlaceholderLedger.clear_terminated",
       "elif data.req.lease is not data.lease and data.trailing_placeholder_count:",
       "elif False:")),
    m("a delayed sampling does not wait for the steps before", "identity crash client",
      (LEDGER + "sample_delayed", "while len(in_flight) > 1:", "while False:")),
    m("nobody says that a step has been post-processed", "deadlock",
      ("loops.mindie_plugin:generate_token_async", "item.postprocess_done.set()", "pass")),
    m("a placeholder's position is the one before", "identity crash",
      (CONTEXT + "advance_positions", "prefix_lens[row] += 1", "pass")),
    m("the plugin's context does not count a token", "identity crash",
      (CONTEXT + "PluginContext.update", "context.seq_len += 1", "pass")),
    m("the plugin fills nothing in", "identity",
      (PLUGIN + "fill_in_model_result", "self.fill_host.fill(flat, last.result.tokens)", "pass")),
    m("the plugin's mask has no newest token", "identity crash client",
      (PLUGIN + "put", "item.newest = self.newest_tokens(batch, last)", "item.newest = {}")),
    m("an empty turn does not ask the plugin for what it still has", "livelock deadlock",
      (PLUGIN + "has_output", "self.output_queue[0] is not None", "False")),
    # -- SGLang's MLX loop -------------------------------------------------------------------------
    m("a chained step goes on whoever waits or has ended", "",
      (MLX + "_may_be_promoted",
       "not pending_next.batch_copy.anyone_left and not engine.scheduler.waiting_queue", "True"),
      equivalent="only a turn later: before the next chain it is asked again who waits"),
    m("a step is chained although its mask needs the last token", "identity crash client",
      (MLX + "_chain_unsafe", "engine.missing_history(prev.batch_copy, steps_ahead=1) if chains",
       '"" if chains')),
    m("what a broken chain has made is thrown away", "crash livelock identity progress",
      (MLX + "mlx_async", "if pending_next is not None:  # the chain is broken",
       "if False:  # the chain is broken")),
    m("the states of who has gone stay with the runner", "identity crash",
      ("loops.mlx_worker:MlxTpModelWorker._cleanup_stale_rids", "if state.cache.is_released]",
       "if False]"),
      missed="no token is taken from the runner's books, and no law looks at them"),
    # -- bursts, and mini-sglang's -----------------------------------------------------------------
    m("of a burst only the last step is taken in", "crash livelock",
      ("loops.multi_step:multi_step", "zip(burst, results, strict=True):",
       "list(zip(burst, results, strict=True))[-1:]:")),
    m("a chain is built on the step before the last", "identity crash",
      ("engine.engine:Engine.advance_step", "inputs = self.worker.prepare(batch, pending)",
       "inputs = self.worker.prepare(batch)")),
    m("a step that came back is taken in a turn late", "progress client crash livelock",
      ("loops.mini_overlap:mini_overlap",
       "reply.process_last_data(last_data)  # the device runs ``ongoing_data``\n"
       "        last_data = ongoing_data", "if last_data is None or ongoing_data is None:\n"
       "            reply.process_last_data(last_data)\n            last_data = None\n"
       "        last_data = last_data or ongoing_data")),
    # -- PD separation -----------------------------------------------------------------------------
    m("the prefill side is not told that a request was given up", "deadlock livelock leak",
      ("loops.pd_decode:DecodeEngine.process_decode_queue", "self.say(Abort(room))", "pass")),
    m("an unwanted prompt is not marked as such", "deadlock livelock leak",
      (PREFILL + "pop_bootstrapped", "sender.is_unwanted = True", "pass")),
    m("the last chunk of a transfer is a position short", "identity ownership",
      (PREFILL + "_go_on", "len(done.req.prompt), done.lease.last_step",
       "len(done.req.prompt) - 1, done.lease.last_step")),
    m("a failed prompt's lease is held for ever", "leak livelock deadlock",
      (PREFILL + "_go_on", "self.scheduler.leases.let_go(done.lease)", "pass")),
    m("the answer goes before the KV", "race identity",
      ("loops.pd_prefill:PrefillEngine._go_on",
       "last = Transferred(rid, done.token, logprobs=logprobs_of(done.req))",
       "last = Transferred(rid, done.token, logprobs=logprobs_of(done.req))\n"
       "        self.other.post(self.device.now(), last)")),
)
# fmt: on
