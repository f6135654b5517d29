"""Recorded events to pictures: every exporter draws the same ``layout.View`` of a trace.

Text for machines: ``native`` (this project's JSON), ``chrome`` (Perfetto). Pictures: ``svg``,
``html``, ``text``, ``puml_timing``, ``puml_sequence``. ``golden`` keeps the repository's own.
"""
