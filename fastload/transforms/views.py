"""Several versions of one image, each with draws of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastload.errors import UsageError
from fastload.transforms.operations import Operation
from fastload.transforms.torchvision import from_torchvision

__all__ = ["MultiView"]


class MultiView:
    """Make several views of an image, for self-supervision: ``ds.transform(image=MultiView({…}))``.

    ``views`` maps the name of a new field to (count, operations): the field is a list of ``count`` images (in
    a batch: of batches of images), each made of the stored one with draws of its own. The new fields take
    the stored one's place.

    >>> from fastload import transforms as T
    >>> T.MultiView({"global": (2, [T.RandomResizedCrop(224)]), "local": (6, [T.RandomResizedCrop(96)])})
    MultiView(global: 2 x RandomResizedCrop, local: 6 x RandomResizedCrop)
    """

    def __init__(self, views: Mapping[str, tuple[int, Any]]) -> None:
        if not isinstance(views, Mapping) or not views:
            raise UsageError("MultiView takes a dict of views", hint='MultiView({"global": (2, [...])})')
        self.views: dict[str, tuple[int, tuple[Operation, ...]]] = {}
        for name, view in views.items():
            if (
                not isinstance(view, tuple)
                or len(view) != 2
                or not isinstance(view[0], int)
                or not 1 <= view[0] <= 128
            ):
                raise UsageError(
                    f"view {name!r} is (count, operations), with a count of 1 to 128, not {view!r}"
                )
            self.views[name] = (view[0], from_torchvision(view[1]))

    def __repr__(self) -> str:
        views = []
        for name, (count, operations) in self.views.items():
            steps = ", ".join(type(operation).__name__ for operation in operations)
            views.append(f"{name}: {count} x {steps or 'as stored'}")
        return f"MultiView({', '.join(views)})"
