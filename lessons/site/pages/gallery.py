"""The gallery: a page for each topic, made from ``topics.py``, and one for all other diagrams.

A topic's page has its question, its golden view, its diagrams, its code and the diagram's text.
``index`` has all the questions, each with a part of the picture that can be read.
"""

from __future__ import annotations

import re
from itertools import groupby

from minisched.export.golden import TEXT_ONLY
from minisched.topics import SAME_PICTURE, TOPICS

from .lessons import lesson_of
from .pictures import picture
from .questions import CARDS
from .repository import ROOT, docstring, fenced, folded, in_markdown, text
from .steppers import stepper_of


def pages() -> dict[str, str]:
    """Return every page of the gallery by its path."""
    return {
        "gallery/index.md": index(),
        **{f"gallery/{topic}.md": topic_page(topic) for topic in TOPICS},
        "gallery/more.md": more(),
    }


def page_of(diagram: str) -> str:
    """Return the place of a diagram in the site, from the root."""
    return f"gallery/{diagram}.md" if diagram in TOPICS else f"gallery/more.md#{anchor(diagram)}"


def index() -> str:
    """Return the index: all topics in the order of the layers, then the rest."""
    parts = [INDEX_HEAD, f"<style>\n{crops()}</style>\n"]
    for layer, topics in groupby(TOPICS, layer_of):
        parts.append(f"## {ABOUT[layer]}\n")
        parts.append(wall([card(topic) for topic in topics]))
    parts.append(f"## {ALL}\n")
    parts.append(wall([large(name, words) for name, words in SHARED.items()]))
    parts.append(f"## {OTHERS}\n")
    parts.append(wall([small(name, page_of(name), f"diagrams/{name}.svg") for name in others()]))
    names = "\n".join([*TOPICS, f"{OTHERS} <more>"])
    parts.append(f":::{{toctree}}\n:hidden:\n\n{names}\n:::")
    return "\n".join(parts) + "\n"


def topic_page(topic: str) -> str:
    """Return a topic's page: golden view, links, diagrams, and code."""
    code = f"minisched/{TOPICS[topic]}.py"
    known = CARDS[topic]
    parts = [f"# {known.title}\n\n**{known.question}** {known.answer}\n"]
    parts += [f"{link}\n" for link in (stepper_of(topic, "../"), lesson_of(topic, "../")) if link]
    parts += ["## A run\n", picture(golden_view(topic), f"{topic}, from a run", "../") + "\n"]
    parts += ["## How it works\n", in_markdown(docstring(code)) + "\n"]
    parts += [diagram_part(topic)]
    parts += [f"## The code: `{code}`\n\n{fenced(text(code), 'python')}"]
    return "\n".join(parts) + "\n"


def more() -> str:
    """Return the page of pictures that belong to several topics or to a part of one."""
    whole = [
        f"({anchor(name)})=\n## {words}\n\n{picture(f'traces/{name}.svg', words, '../')}\n"
        for name, words in SHARED.items()
    ]
    return f"# {OTHERS}\n\n" + "\n".join([*whole, *map(diagram_part, others())])


def diagram_part(name: str) -> str:
    """Return a diagram under its title, with its source text."""
    path, title, drawn = f"diagrams/{name}.puml", title_of(name), f"diagrams/{name}.svg"
    shown = f"{picture(drawn, title, '../')}\n\n" if (ROOT / drawn).is_file() else ""
    return (
        f"({anchor(name)})=\n## {title}\n\n{shown}"
        f"{symbols(text(path))}"
        f"{folded(f'The text of this diagram: <code>{path}</code>', text(path), 'text')}\n"
    )


def golden_view(topic: str) -> str:
    """Return the picture of a topic's run, or of a run with the same picture."""
    return f"traces/{SAME_PICTURE.get(topic, topic)}.svg"


def symbols(diagram: str) -> str:
    """Return the links of a diagram's names, because links in a picture cannot be clicked."""
    found = dict.fromkeys(re.findall(r"\[\[(?:\.\./)*(minisched/[\w/]+)\.py#([\w.]+)", diagram))
    places = [f"{path.replace('/', '.')}.{name}" for path, name in found]
    roles = [f"{{py:obj}}`~{place}`" for place in places]
    return f"Names in it: {', '.join(roles)}.\n\n" if roles else ""


def others() -> list[str]:
    """Return the diagrams with a picture that belong to no single topic."""
    own = {*TOPICS, *TEXT_ONLY}
    return [path.stem for path in sorted(ROOT.glob("diagrams/*.puml")) if path.stem not in own]


def title_of(name: str) -> str:
    """Return the first line of a diagram's title."""
    found = re.search(r"^title (.*)$", text(f"diagrams/{name}.puml"), re.MULTILINE)
    return found[1].split("\\n")[0] if found else name


def anchor(diagram: str) -> str:
    """Return the anchor of a diagram."""
    return f"diagram-{diagram}"


def wall(cards: list[str]) -> str:
    """Arrange pictures in rows."""
    return "\n".join([":::::{container} wall", *cards, ":::::", ""])


def card(topic: str) -> str:
    """Return a topic's card: a part of its golden view, its question, and the answer."""
    known, target = CARDS[topic], f"{topic}.md"
    shown = picture(golden_view(topic), f"a part of {topic}'s picture", "../")
    return (
        f"::::{{container}} card crop {topic}\n[{shown}]({target})\n\n[{known.title}]({target})\n\n"
        f"{known.question}\n\n{known.answer}\n::::\n"
    )


def small(name: str, page: str, path: str) -> str:
    """Return a diagram that links to a page; both paths are from the site's root."""
    target, shown = page.removeprefix("gallery/"), picture(path, name, "../")
    return f"::::{{container}} card\n[{shown}]({target})\n\n[{title_of(name)}]({target})\n::::\n"


def large(name: str, words: str) -> str:
    """Return the card of a picture of several designs."""
    target, shown = f"more.md#{anchor(name)}", picture(f"traces/{name}.svg", words, "../")
    return f"::::{{container}} card\n[{shown}]({target})\n\n[{words}]({target})\n::::\n"


def crops() -> str:
    """Return the style of all cards: the visible part of each picture."""
    return "".join(
        f".{topic.replace('_', '-')} img {{ object-position: {-known.left}px {-known.top}px }}\n"
        for topic, known in CARDS.items()
    )


def layer_of(topic: str) -> str:
    """Return the folder of a topic's code."""
    return TOPICS[topic].partition("/")[0]


ABOUT = {  # the folder of a topic's code -> its heading
    "memory": "Memory: which request owns it?",
    "policy": "Policy: which request runs next?",
    "relay": "Relays: how does a token reach the next step?",
    "worker": "Results: how does a token reach the host?",
    "features": "Where overlap must wait",
    "loops": "Loops: when does each lane work?",
}
ALL = "All designs at a glance"
SHARED = {  # a picture in ``traces/`` -> its question
    "poster": "How far ahead each design is: designs that draw the same picture are one family.",
    "one_token": "Through each relay: where does a token wait, and when does it arrive?",
}
OTHERS = "More diagrams"
INDEX_HEAD = """\
# Gallery

Thirty ideas, each with a question and a part of its picture. Each links to a page with the whole
picture, which was drawn from a run, with a diagram, and with the code.
"""
