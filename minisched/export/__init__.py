"""Recorded events to pictures: a topic makes a ``scene.Scene`` of a trace, and writers draw it.

Writers of scenes: ``scene_svg``, ``scene_puml``, ``scene_text``. Text for machines: ``native`` (this
project's JSON), ``chrome`` (Perfetto). ``html`` is the player; ``golden`` keeps the repository's own.
"""
