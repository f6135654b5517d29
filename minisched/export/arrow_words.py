"""What an arrow between two slices says: the same words in every form of a sequence."""

from __future__ import annotations

from .layout import Arrow


def says(arrow: Arrow) -> str:
    """``launch 5``, ``tokens of 5``, ``token for 6``, ``wrong token for 6``, ``KV for 6``."""
    words = {
        "token": f"token for {arrow.dst.step}",
        "transfer": f"KV for {arrow.dst.step}",
        "result": f"tokens of {arrow.src.step}",
        "wrong": f"wrong token for {arrow.dst.step}",
    }
    return words.get(arrow.brings, f"{arrow.brings} {arrow.dst.step}")


def meaning(arrow: Arrow) -> str:
    """The whole sentence; of a token also which way it goes."""
    if arrow.kind != "token" or arrow.brings == "transfer":
        return says(arrow)
    stays = arrow.src.slice.name != "copy" and arrow.src.lane.side == "device"
    said = f"{says(arrow)} {'stays on the device' if stays else 'goes over the host'}"
    return f"{said}: {arrow.wrong}" if arrow.wrong else said
