"""The published loops: the order of receive, schedule, launch and process.

A design is one file: the loop, what belongs to it beside its body (``design.py:design``, above the
loop), and what only it needs. This is the list of those files, in the order of the table
in ``lessons/site/docs/designs.md``; nothing else registers them.

======================  ========================================================================
``serial``              the host and the device take turns: SGLang's normal loop
``overlap``             SGLang's overlap scheduling, with a FutureMap; and ``mixed``, which has
                        prompts and decodes in one step
``overlap_thread``      how SGLang overlapped before: a second thread launches
``mini``                mini-sglang's two loops, with a token pool
``mlx_async``           SGLang's loop for MLX: a lazy graph is built upon one not yet evaluated
``vllm``                vLLM's engine core: step by step, and with a batch queue
``vllm_async``          vLLM's async scheduling: on placeholders for tokens in flight
``vllm_pp``             vLLM over the stages of a pipeline
``mindie_plugin``       MindIE's Python plugin: a call answers with the step before
``mindie_placeholder``  MindIE's C++ scheduler, which counts placeholders; both layers as one
                        stack; and one pipeline in place of the two
``multi_step``          vLLM V0: decide once, decode N times
``pd``                  prompts on one device, decoding on another
``trtllm_overlap``      TensorRT-LLM's overlap loop, with its two admission policies
``two_batch``           SGLang's two-batch overlap: one half computes, the other communicates
======================  ========================================================================

``run`` makes the engine that a loop turns, and turns it until every request has ended.
"""

# ruff: noqa: F401, I001  in the order of the tables

from . import serial
from . import overlap
from . import overlap_thread
from . import mini
from . import mlx_async
from . import vllm
from . import vllm_async
from . import vllm_pp
from . import mindie_plugin
from . import mindie_placeholder
from . import multi_step
from . import pd
from . import mixed
from . import trtllm_overlap
from . import two_batch
