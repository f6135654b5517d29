"""What an arrow between two slices says: the same words in every form of a sequence."""

from __future__ import annotations

from .layout import Arrow


def says(arrow: Arrow) -> str:
    """``launch 5``, ``tokens of 5``, ``token for 6``, ``KV for 6``."""
    words = {
        "token": f"token for {arrow.dst.step}",
        "transfer": f"KV for {arrow.dst.step}",
        "result": f"tokens of {arrow.src.step}",
    }
    return words.get(arrow.brings, f"{arrow.brings} {arrow.dst.step}")


def meaning(arrow: Arrow) -> str:
    """The whole sentence; of a token also which way it goes."""
    if arrow.brings != "token":
        return says(arrow)
    stays = arrow.src.slice.name != "copy" and arrow.src.lane.side == "device"
    return f"{says(arrow)} {'stays on the device' if stays else 'goes over the host'}"
