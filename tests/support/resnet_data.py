"""A tiny trained network and what it was trained on, shared by the ResNet tests."""

from functools import lru_cache

import numpy as np
import torch

from l2ul_fast.resnet.data import Images, make_standin, standardise
from l2ul_fast.resnet.features import Unseen, unseen_outputs
from l2ul_fast.resnet.train import Recipe, Trained, train

RECIPE = Recipe(epochs=8, batch=25, rate=0.1, augment=False)
WIDTH = 4


@lru_cache(maxsize=1)
def images() -> Images:
    return make_standin(200, 100, 60)


@lru_cache(maxsize=1)
def trained() -> Trained:
    torch.set_num_threads(1)
    found = train(images().x, images().y, None, RECIPE, WIDTH, 0)
    # so few steps leave batch norm's running statistics far behind: let them catch up
    found.network.train()
    with torch.no_grad():
        for _ in range(30):
            found.network(standardise(images().x))
    found.network.eval()
    return found


@lru_cache(maxsize=1)
def forget() -> np.ndarray:
    """Nine rows that the network gets right, in ascending order."""
    with torch.no_grad():
        said = trained().network(standardise(images().x)).argmax(1)
    right = np.flatnonzero((said == images().y).numpy())
    assert len(right) >= 40
    return right[:36:4]


@lru_cache(maxsize=1)
def unseen() -> Unseen:
    return unseen_outputs(images(), RECIPE, WIDTH, 0, None)


def same(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    """Whether weights and buffers are equal bit for bit."""
    pairs = zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    return all(torch.equal(x, y) for x, y in pairs)
