"""Pictures of recorded events: a topic makes a ``scene.Scene`` of a trace, and writers draw it.

Writers of scenes are ``scene_svg`` (on ``svg_page``), ``scene_puml`` and ``scene_text``. Text for
machines: ``native`` (this project's JSON) and ``chrome`` (Perfetto). ``html`` is the player;
``golden`` keeps the repository's own pictures.
"""
