"""ResNet-18 with the CIFAR stem (3 x 3, no pooling), any width; parameters as one flat vector."""

from __future__ import annotations

import copy
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_eval

from l2ul_fast.errors import UserError


def layout(width: int) -> torch.memory_format:
    """channels_last is a quarter faster on CPUs. Only for whole vectors of channels: with other widths and two threads
    the backward pass of torch 2.13's convolutions writes outside its memory when batches have odd sizes."""
    return torch.channels_last if width % 16 == 0 else torch.contiguous_format


class Block(nn.Module):
    """Two 3 x 3 convolutions with batch norm, and a shortcut."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outside)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        out = functional.relu(self.norm1(self.conv1(x)), inplace=True)
        return functional.relu(self.norm2(self.conv2(out)) + self.shortcut(x), inplace=True)


class ResNet18(nn.Module):
    """Four stages of two blocks with width, 2 width, 4 width, 8 width channels; width 64 is the original.

    Attributes: width, n_features (8 width), n_classes; head is the last layer.
    """

    def __init__(self, width: int = 64, n_classes: int = 10) -> None:
        super().__init__()
        if width < 1 or n_classes < 2:
            raise UserError(f"a ResNet-18 needs a width of at least 1 and 2 classes, got {width} and {n_classes}")
        self.width, self.n_features, self.n_classes = width, 8 * width, n_classes
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        blocks, inside = [], width
        for stage in range(4):
            outside = width * 2**stage
            blocks += [Block(inside, outside, 1 if stage == 0 else 2), Block(outside, outside, 1)]
            inside = outside
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inside, n_classes)
        self.to(memory_format=layout(width))  # type: ignore[call-overload]

    def features(self, x: Tensor) -> Tensor:
        """(b, 8 width) what the last layer sees of images x (b, 3, 32, 32)."""
        out: Tensor = self.blocks(self.stem(x.contiguous(memory_format=layout(self.width))))
        return out.mean((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        """(b, C) logits."""
        out: Tensor = self.head(self.features(x))
        return out


def build(width: int, n_classes: int = 10, seed: int = 0) -> ResNet18:
    """A network whose first weights follow from the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ResNet18(width, n_classes)


def copy_of(network: ResNet18) -> ResNet18:
    """An independent copy."""
    return copy.deepcopy(network)


def fused(network: ResNet18) -> ResNet18:
    """A copy for looking only: in eval mode a batch norm is a scale and a shift, which its convolution can do."""
    fuse: Any = fuse_conv_bn_eval
    out: Any = copy_of(network).eval()
    out.stem = nn.Sequential(fuse(out.stem[0], out.stem[1]), out.stem[2])
    for block in out.blocks:
        block.conv1, block.norm1 = fuse(block.conv1, block.norm1), nn.Identity()
        block.conv2, block.norm2 = fuse(block.conv2, block.norm2), nn.Identity()
        if isinstance(block.shortcut, nn.Sequential):
            block.shortcut = fuse(block.shortcut[0], block.shortcut[1])
    fast: ResNet18 = out.to(memory_format=layout(network.width))
    return fast


def flat(network: nn.Module) -> Tensor:
    """(p,) all parameters in the order of `network.parameters()`, copied."""
    return torch.cat([p.detach().reshape(-1) for p in network.parameters()])


def set_flat(network: nn.Module, theta: Tensor) -> None:
    """Put theta (p,) into the network."""
    size = sum(p.numel() for p in network.parameters())
    if theta.shape != (size,):
        raise UserError(f"theta must have shape ({size},), got {tuple(theta.shape)}")
    start = 0
    with torch.no_grad():
        for p in network.parameters():
            p.copy_(theta[start : start + p.numel()].view(p.shape))
            start += p.numel()


def arrays_of(network: ResNet18) -> dict[str, NDArray[Any]]:
    """Parameters and buffers by the names of an artifact."""
    return {"base": flat(network).numpy()} | {f"buffer.{name}": b.numpy() for name, b in network.named_buffers()}


def network_of(width: int, n_classes: int, arrays: dict[str, NDArray[Any]]) -> ResNet18:
    """The network, in eval mode, that `arrays_of` described."""
    network = ResNet18(width, n_classes)
    for name, buffer in network.named_buffers():
        buffer.copy_(torch.from_numpy(arrays[f"buffer.{name}"]))
    set_flat(network, torch.from_numpy(arrays["base"]))
    return network.eval()
