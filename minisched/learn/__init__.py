"""What the lessons are made of: runs, pictures, sources, sliders, and exercises with checkers.

==================== ===========================================================================
module               what it gives
==================== ===========================================================================
``simulate``         a run whose host, device and copy take so many milliseconds a step
``figure``           pictures of runs, shown where a notebook or a page can
``source``           the few lines of the package that a lesson is about, never a copy of them
``slider``           host and device cost on two sliders, in a page that needs no kernel
``workload``         small random workloads, and simpler ones, for counterexamples
``oracle``           what a request gets when it is alone: the truth
``trial``            one workload run through a learner's lines, bounded, with all that was heard
``guard``            no run of a learner's lines lasts for ever; errors become one sentence
``laws``             what must be true of a trial
``exercise``         tries many workloads, shrinks the first that fails, and gives a verdict
``counterexample``   the trial up to the first wrong token, with the offending step marked
``verdict``          what a learner sees
``loop_exercise``    write a loop that overlaps
``formula_exercise`` how long a settled step takes, and where overlap loses
``ring_exercise``    the lines of a FutureMap
``sticky_ring``      the ring as SGLang had it, with the learner's lines in it
``lazy_exercise``    hand over before you read: MLX's ``async_eval`` on a virtual clock
``chain_exercise``   what a lazy step is built on, and when the chain must break
==================== ===========================================================================

Only the standard library is needed, and IPython nowhere: what a cell shows has ``_repr_html_``.
"""

