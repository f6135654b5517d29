"""The published loops: the order of receive, schedule, launch and process.

Each loop is a generator in a file of its own; what only it needs stands beside it under its name.

======================  ========================================================================
loop                    with
======================  ========================================================================
``serial``
``overlap``             ``overlap_rules``: when not to overlap
``overlap_thread``      ``overlap_thread_client``, ``overlap_thread_worker``: two ends of a queue
``mini_normal``         ``mini_detokenize``: the messages of both mini-sglang loops
``mini_overlap``
``mlx_async``           how its steps begin and end; ``export/mlx_sketch.py`` is an excerpt
``vllm_step``
``vllm_batch_queue``    ``vllm_placeholders``; with async scheduling it is ``vllm_async``
``vllm_pp``             the batch queue before a pipeline (``worker/pipeline.py``)
``mindie_plugin``       ``mindie_plugin_manager``, with its book ``mindie_plugin_context``, and its
                        thread ``mindie_forward_loop``
``mindie_placeholder``  ``mindie_placeholder_ledger``
``mindie_dual``         both of these
``mindie_single``       the ledger
``multi_step``
``pd``                  two loops, ``pd_prefill`` and ``pd_decode``, each with an engine that is a
                        ``pd_side``; ``pd_messages`` between them, ``pd_kv_transfer``, ``pd_run``
======================  ========================================================================

``registry`` knows them by name (``naming`` reads it); ``spec`` says what a loop needs, ``refused``
what it does not go with, ``wiring`` makes its engine (``speculation``: with a worker that verifies
drafts), and ``run`` turns it until every request has ended. ``current_line`` and ``source`` say
where a loop is in its text, for the pictures that show it.
"""
