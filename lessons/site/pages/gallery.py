"""The gallery: a page for each topic, made from ``topics.py``, and one for all other diagrams.

A topic's page has its golden view, its diagrams, its code and the diagram's text. ``index`` shows
all of them small, in the order of the layers.
"""

from __future__ import annotations

import re
from itertools import groupby

from minisched.topics import SAME_PICTURE, TOPICS

from .lessons import lesson_of
from .pictures import picture
from .repository import ROOT, docstring, fenced, folded, in_markdown, text
from .steppers import stepper_of

SUFFIXES = ("", "_sequence")  # the diagrams that belong to a topic, by what follows its name


def pages() -> dict[str, str]:
    """Every page of the gallery, by its path."""
    return {
        "gallery/index.md": index(),
        **{f"gallery/{topic}.md": topic_page(topic) for topic in TOPICS},
        "gallery/more.md": more(),
    }


def page_of(diagram: str) -> str:
    """Where in the site a diagram is shown, from the root."""
    topic = diagram.removesuffix("_sequence")
    return f"gallery/{topic}.md" if topic in TOPICS else f"gallery/more.md#{anchor(diagram)}"


def index() -> str:
    """All topics, small, in the order of the layers; then the rest."""
    parts = [INDEX_HEAD]
    for layer, topics in groupby(TOPICS, layer_of):
        parts.append(f"## {layer}\n\n{in_markdown(summary(docstring_of_layer(layer)))}\n")
        parts.append(wall([card(topic) for topic in topics]))
    parts.append(f"## {OTHERS}\n")
    parts.append(wall([small(name, page_of(name), f"diagrams/{name}.svg") for name in others()]))
    names = "\n".join([*TOPICS, f"{OTHERS} <more>"])
    parts.append(f":::{{toctree}}\n:hidden:\n\n{names}\n:::")
    return "\n".join(parts) + "\n"


def topic_page(topic: str) -> str:
    """The golden view, what leads on, the diagrams, and the code."""
    code = f"minisched/{TOPICS[topic]}.py"
    parts = [f"# {topic}\n", in_markdown(docstring(code)) + "\n"]
    parts += [f"{link}\n" for link in (stepper_of(topic, "../"), lesson_of(topic, "../")) if link]
    parts += ["## A run\n", picture(golden_view(topic), f"{topic}, from a run", "../") + "\n"]
    parts += [diagram_part(f"{topic}{suffix}") for suffix in SUFFIXES if exists(f"{topic}{suffix}")]
    parts += [f"## The code: `{code}`\n\n{fenced(text(code), 'python')}"]
    return "\n".join(parts) + "\n"


def more() -> str:
    """What shows several topics at once, or a part of one."""
    return f"# {OTHERS}\n\n" + "\n".join(f"{diagram_part(name)}" for name in others())


def diagram_part(name: str) -> str:
    """One diagram under its title, and the text that it was drawn from."""
    path, title, drawn = f"diagrams/{name}.puml", title_of(name), f"diagrams/{name}.svg"
    shown = f"{picture(drawn, title, '../')}\n\n" if (ROOT / drawn).is_file() else ""
    return (
        f"({anchor(name)})=\n## {title}\n\n{shown}"
        f"{symbols(text(path))}"
        f"{folded(f'The text of this diagram: <code>{path}</code>', text(path), 'text')}\n"
    )


def golden_view(topic: str) -> str:
    """The picture of a topic's run, or of the run that looks like it."""
    return f"traces/{SAME_PICTURE.get(topic, topic)}.svg"


def symbols(diagram: str) -> str:
    """Where the names lead that a diagram's text links to: in a picture they cannot be clicked."""
    found = dict.fromkeys(re.findall(r"\[\[(?:\.\./)*(minisched/[\w/]+)\.py#([\w.]+)", diagram))
    places = [f"{path.replace('/', '.')}.{name}" for path, name in found]
    roles = [f"{{py:obj}}`~{place}`" for place in places]
    return f"Names in it: {', '.join(roles)}.\n\n" if roles else ""


def others() -> list[str]:
    """The diagrams that are no topic's own."""
    own = {f"{topic}{suffix}" for topic in TOPICS for suffix in SUFFIXES}
    return [path.stem for path in sorted(ROOT.glob("diagrams/*.puml")) if path.stem not in own]


def title_of(name: str) -> str:
    """The first line of a diagram's title."""
    found = re.search(r"^title (.*)$", text(f"diagrams/{name}.puml"), re.MULTILINE)
    title = found[1].split("\\n")[0] if found else name
    return f"{title} (sequence)" if name.endswith("_sequence") else title


def anchor(diagram: str) -> str:
    """What links to a diagram name it."""
    return f"diagram-{diagram}"


def exists(diagram: str) -> bool:
    """Whether there is such a diagram."""
    return (ROOT / f"diagrams/{diagram}.puml").is_file()


def wall(cards: list[str]) -> str:
    """Pictures side by side, as many as fit."""
    return "\n".join([":::::{container} wall", *cards, ":::::", ""])


def card(topic: str) -> str:
    """A topic, small: its golden view leads to its page."""
    return small(topic, f"gallery/{topic}.md", golden_view(topic))


def small(name: str, page: str, path: str) -> str:
    """A picture that leads to a page; both paths are from the site's root."""
    target, shown = page.removeprefix("gallery/"), picture(path, name, "../")
    return f"::::{{container}} card\n[{shown}]({target})\n\n[{name}]({target})\n::::\n"


def layer_of(topic: str) -> str:
    """The folder of its code."""
    return TOPICS[topic].partition("/")[0]


def docstring_of_layer(layer: str) -> str:
    """What a layer says of itself."""
    return docstring(f"minisched/{layer}/__init__.py")


def summary(docstring_text: str) -> str:
    """The first paragraph of a docstring, on one line."""
    return " ".join(docstring_text.split("\n\n")[0].split())


OTHERS = "More diagrams"
INDEX_HEAD = """\
# Gallery

Each picture was drawn from a run or, where it shows a structure, by hand; behind each is a page
with the run, the diagram, its text, and the code that it is about.
"""
