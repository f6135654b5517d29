"""The radix tree as text for a terminal, and as PlantUML."""

from __future__ import annotations

from ...trace import Trace
from ..puml_style import creole
from ..units import ms
from .page import about_run
from .page_story import evictions
from .puml_stays import fill, ink, legend
from .radix_story import NAMES, TITLE, branches, changes, order, pictures
from .radix_tree import ROOT, Tree
from .radix_words import held, story, title
from .text_page import GLYPHS, TextPage
from .wording import many, short

MOST_NODES, MOST_ROWS, DEEP = 24, 40, 36  # in characters: how far a node is indented
STYLE = """\
<style>
componentDiagram {
  FontSize 12
  LineColor #59636E
  rectangle { BackgroundColor #FFFFFF }
  package { BackgroundColor #F3F5F7
    FontSize 11 }
}
legend { BackgroundColor #FFFFFF
  LineColor #9DA7B1 }
</style>
skinparam nodesep 10
skinparam ranksep 22"""


def text(trace: Trace) -> str:
    """Pages over time, every change, and the tree before and after some of them.

    Raises:
        NothingToShow: nothing ever entered a tree.
    """
    part, moments, shown = changes(trace)
    page = TextPage(TITLE, about_run(trace, shown), margin=16)
    end = max(part.end, moments[-1].time)
    page.heading("Pages in the tree, over time")
    page.curve("protected", [(moment.time, moment.protected) for moment in moments], end)
    page.curve("evictable", [(moment.time, moment.evictable) for moment in moments], end)
    page.lanes([], end)
    for at, picture in enumerate(pictures(part, moments), 1):
        page.heading(title(at, picture.moment), picture.story)
        _write_tree(page, "before", picture.before, picture.lockers_before, set())
        _write_tree(page, "after", picture.after, picture.lockers, picture.changed)
    page.legend(NAMES)
    page.heading("Every change" if len(moments) <= MOST_ROWS else
                 f"The first {MOST_ROWS} of {len(moments)} changes")  # fmt: skip
    gone = evictions(part)
    page.table(
        ("ms", "protected", "evictable", "evicted", "what happened"),
        [
            (ms(moment.time), moment.protected, moment.evictable, gone.get(moment.time, 0),
             story(part, moment))
            for moment in moments[:MOST_ROWS]
        ],
    )  # fmt: skip
    return page.finish()


def _write_tree(
    page: TextPage, name: str, tree: Tree, lockers: dict[int, list[str]], changed: set[int]
) -> None:
    """An indented list: sign, tokens, pages, and by whom it is locked."""
    page.lines.append(f"  {name:<7}root")
    nodes = order(tree)
    for (_, node), branch in [*zip(nodes, branches(nodes), strict=True)][:MOST_NODES]:
        lead = branch if len(branch) <= DEEP else f"…{branch[1 - DEEP :]}"
        words = f"{lead}{GLYPHS[node.state]} {node.tokens}"
        state = held(node, lockers.get(node.id, []))
        note = "  *" if node.id in changed else ""
        pages = f"{many(node.pages, 'page'):>9}"
        page.lines.append(f"{'':9}{short(words, 50):<50} {pages}, {short(state, 26)}{note}")
    if len(nodes) > MOST_NODES:
        page.lines.append(f"         … and {len(nodes) - MOST_NODES} more nodes")


def puml(trace: Trace) -> str:
    """A frame for each moment, before and after, with the tree in it.

    Raises:
        NothingToShow: nothing ever entered a tree.
    """
    part, moments, _ = changes(trace)
    lines = ["@startuml", STYLE, f"title {TITLE}"]
    frames = []
    for at, picture in enumerate(pictures(part, moments), 1):
        when = f"{ms(picture.moment.time)} ms"
        before, after = f"{at}: before {when}", f"{at}: after {when}; {short(picture.story, 90)}"
        frames.append((before, f"b{at}_", picture.before, picture.lockers_before))
        frames.append((after, f"a{at}_", picture.after, picture.lockers))
    for words, name, tree, lockers in frames:
        lines += [f'package "{creole(words)}" {{', *_boxes(name, tree, lockers), "}"]
    deepest = [f"{name}{_deepest(tree)}" for _, name, tree, _ in frames]
    lines += [  # the next moment below this one
        f"{deepest[at]} -[hidden]- {frames[at + 2][1]}0" for at in range(len(frames) - 2)
    ]
    return "\n".join([*lines, *legend(NAMES), "@enduml", ""])


def _boxes(name: str, tree: Tree, lockers: dict[int, list[str]]) -> list[str]:
    """The root and its nodes, each hanging on the one above it."""
    nodes = [node for _, node in order(tree)][:MOST_NODES]
    lines = [f'rectangle "root" as {name}0']
    for node in nodes:
        about = f"{many(node.pages, 'page')}, {held(node, lockers.get(node.id, []))}"
        words = (f"**{creole(node.tokens)}**", creole(about))
        inside = "\\n".join(ink(node.state, line) for line in words)
        lines.append(f'rectangle "{inside}" as {name}{node.id} {fill(node.state)}')
    if len(nodes) < len(tree.nodes):
        lines.append(f'rectangle "and {len(tree.nodes) - len(nodes)} more nodes" as {name}more')
    return lines + [f"{name}{node.parent} -- {name}{node.id}" for node in nodes]


def _deepest(tree: Tree) -> int:
    """A node on the lowest level that is drawn; the root where there is no other."""
    nodes = order(tree)[:MOST_NODES]
    return max(nodes, key=lambda item: item[0])[1].id if nodes else ROOT
