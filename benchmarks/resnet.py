"""A ResNet-50 (He, Zhang, Ren, Sun: Deep residual learning for image recognition; 2015) to be fed."""

from __future__ import annotations

import torch
from torch import nn

__all__ = ["resnet50"]


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    padding = kernel // 2
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False), nn.BatchNorm2d(outputs)
    )


class _Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _convolution(inputs, width, 1),
            nn.ReLU(inplace=True),
            _convolution(width, width, 3, stride),
            nn.ReLU(inplace=True),
            _convolution(width, 4 * width, 1),
        )
        same = inputs == 4 * width and stride == 1
        self.shortcut: nn.Module = nn.Identity() if same else _convolution(inputs, 4 * width, 1, stride)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(images) + self.shortcut(images))


def resnet50(classes: int = 1000, blocks: tuple[int, ...] = (3, 4, 6, 3), width: int = 64) -> nn.Module:
    """Return a ResNet-50, or a smaller one of fewer ``blocks`` a stage and channels.

    >>> network = resnet50(10, (1, 1), 4)
    >>> network(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    layers: list[nn.Module] = [_convolution(3, width, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inputs = width
    for stage, count in enumerate(blocks):
        for block in range(count):
            layers.append(_Bottleneck(inputs, width << stage, 2 if stage and not block else 1))
            inputs = 4 * (width << stage)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))
