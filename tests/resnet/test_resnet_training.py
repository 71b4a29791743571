"""ResNet-18, its data and its training: sizes, checksums, coupling, resuming."""

import gzip

import numpy as np
import pytest
import torch
from resnet_data import WIDTH, images, same, trained

from l2ul_fast.errors import DataError, UserError
from l2ul_fast.resnet import data
from l2ul_fast.resnet.features import margins, outputs, probabilities, share_right
from l2ul_fast.resnet.model import ResNet18, build, copy_of, flat, fused, layout, set_flat
from l2ul_fast.resnet.train import Augment, Recipe, batches, train


def test_width_64_is_the_known_network():
    network = ResNet18(64)
    assert sum(p.numel() for p in network.parameters()) == 11_173_962
    assert network.features(torch.zeros(2, 3, 32, 32)).shape == (2, 512)


def test_narrow_networks_avoid_channels_last():
    assert layout(16) == layout(64) == torch.channels_last
    assert layout(2) == layout(8) == torch.contiguous_format


def test_flat_and_back():
    network, other = build(WIDTH, seed=1), build(WIDTH, seed=2)
    assert not torch.equal(flat(network), flat(other))
    set_flat(other, flat(network))
    assert torch.equal(flat(network), flat(other))
    with pytest.raises(UserError, match="shape"):
        set_flat(other, flat(network)[1:])
    with pytest.raises(UserError, match="width"):
        ResNet18(0)


def test_a_fused_network_says_the_same():
    network = trained().network
    quick = fused(network)
    assert not any(isinstance(m, torch.nn.BatchNorm2d) for m in quick.modules())
    x = data.standardise(images().x[:50])
    with torch.inference_mode():
        torch.testing.assert_close(quick(x), copy_of(network).eval()(x), rtol=1e-4, atol=1e-4)
    before, mode = flat(network).clone(), network.training
    outputs(network, images().x[:50])
    assert torch.equal(flat(network), before)
    assert network.training is mode


def test_building_leaves_the_global_generator_alone():
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    assert same(build(WIDTH, seed=5), build(WIDTH, seed=5))
    assert torch.equal(torch.random.get_rng_state(), before)


# Data ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Batches of our own under the original's names; returns a function that writes one."""
    monkeypatch.setattr(data, "SHA256", {})
    rng = np.random.default_rng(0)

    def write(name: str, pack: bool = False, table: np.ndarray | None = None) -> np.ndarray:
        if table is None:
            table = rng.integers(0, 256, (data.BATCH, data.RECORD), dtype=np.uint8)
            table[:, 0] %= 10
        raw = gzip.compress(table.tobytes(), 1) if pack else table.tobytes()
        (tmp_path / (name + ".gz" * pack)).write_bytes(raw)
        return table

    write.path = tmp_path
    return write


def test_batches_are_read_plain_and_packed(folder):
    train_table, test_table = folder("data_batch_1.bin"), folder("test_batch.bin", pack=True)
    found = data.load(folder.path, 500, 300, 100)
    assert (found.source, found.n) == ("subset", 500)
    assert np.array_equal(found.x.numpy().reshape(500, -1), train_table[:500, 1:])
    assert np.array_equal(found.y, train_table[:500, 0])
    # rows for tuning are never rows for testing
    assert np.array_equal(found.tune_y, test_table[:100, 0])
    assert np.array_equal(found.test_y, test_table[100:400, 0])
    assert np.array_equal(found.test_x.numpy().reshape(300, -1), test_table[100:400, 1:])
    assert data.load(folder.path, 501, 300, 100).identity != found.identity
    with pytest.raises(DataError, match="10001 training images"):
        data.load(folder.path, 10_001, 300, 100)
    with pytest.raises(UserError, match="more than the batch"):
        data.load(folder.path, 500, 9_950, 100)


def test_foreign_and_damaged_batches_are_refused(folder, monkeypatch):
    table = folder("data_batch_1.bin")
    path = folder.path / "data_batch_1.bin"
    monkeypatch.setattr(data, "SHA256", {"data_batch_1.bin": "0" * 64})
    with pytest.raises(DataError, match="checksum"):
        data.read_batch(path, "data_batch_1.bin")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match="bytes expected"):
        data.read_batch(path, "test_batch.bin")
    table[7, 0] = 10
    folder("data_batch_2.bin", table=table)
    with pytest.raises(DataError, match="label 10"):
        data.read_batch(folder.path / "data_batch_2.bin", "data_batch_2.bin")
    packed = folder.path / "data_batch_3.bin.gz"
    packed.write_bytes(gzip.compress(b"x" * 1000)[:-12])
    with pytest.raises(DataError, match="get it again"):
        data.read_batch(packed, "data_batch_3.bin")


def test_a_stand_in_says_so(tmp_path):
    found = data.load(tmp_path, 50, 20, 10)
    assert (found.source, found.n, len(found.test_y), len(found.tune_y)) == ("stand-in", 50, 20, 10)
    again = data.load(tmp_path, 50, 20, 10)
    assert torch.equal(found.x, again.x)
    assert torch.equal(found.y, again.y)
    with pytest.raises(DataError, match="no CIFAR-10 found"):
        data.load(tmp_path, 50, 20, 10, standin=False)


@pytest.mark.realdata
def test_the_original_batches():
    found = data.load(None, 10_000, 9_000, 1000, standin=False)
    assert found.source == "subset"
    assert np.bincount(found.y).tolist() == [1005, 974, 1032, 1016, 999, 937, 1030, 1001, 1025, 981]
    assert np.bincount(torch.cat([found.test_y, found.tune_y])).tolist() == [1000] * 10


# Training ------------------------------------------------------------------------------------------------------------


def test_rows_that_leave_move_no_other_row():
    gone = np.zeros(50, bool)
    gone[[3, 4, 40]] = True
    whole, rest = list(batches(50, None, 8, 0, 2)), list(batches(50, gone, 8, 0, 2))
    assert sorted(np.concatenate(whole)) == list(range(50))
    for a, b in zip(whole, rest, strict=False):
        assert np.array_equal(a[~gone[a]], b)


def test_rows_that_are_gone_are_never_read():
    gone = np.zeros(images().n, bool)
    gone[::5] = True
    spoiled, labels = images().x.clone(), images().y.clone()
    spoiled[gone], labels[gone] = 255, 9
    recipe = Recipe(epochs=1, batch=32, rate=0.1)
    a = train(images().x, images().y, gone, recipe, WIDTH, 0).network
    b = train(spoiled, labels, gone, recipe, WIDTH, 0).network
    c = train(spoiled, labels, None, recipe, WIDTH, 0).network
    assert same(a, b)
    assert not same(a, c)


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_a_killed_training_goes_on_bit_for_bit(tmp_path, optimiser):
    recipe = Recipe(epochs=3, batch=64, rate=0.01, optimiser=optimiser)
    straight = train(images().x, images().y, None, recipe, WIDTH, 0, identity="d").network
    path = tmp_path / "a.safetensors"

    class Killed(Exception):
        pass

    def kill(what, done, total):
        if done >= total * 2 / 3:
            raise Killed

    with pytest.raises(Killed):
        train(images().x, images().y, None, recipe, WIDTH, 0, path, "d", kill)
    steps = []
    found = train(images().x, images().y, None, recipe, WIDTH, 0, path, "d", lambda *a: steps.append(a[1])).network
    assert min(steps) >= 8  # the first two of three epochs (4 steps each) were not repeated
    assert same(found, straight)
    with pytest.raises(DataError, match="another training"):
        train(images().x, images().y, None, recipe, WIDTH, 1, path, "d")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match="damaged"):
        train(images().x, images().y, None, recipe, WIDTH, 0, path, "d")


def test_augmenting_shifts_and_flips():
    x = torch.arange(3 * 32 * 32, dtype=torch.int32).view(1, 3, 32, 32).repeat(4, 1, 1, 1)
    augment = Augment(4, 0, 0)
    augment.shift[:], augment.flip[:] = 4, torch.tensor([False, True, False, False])
    augment.shift[2] = torch.tensor([5, 2])
    out = augment(x, np.arange(4))
    assert torch.equal(out[0], x[0])
    assert torch.equal(out[1], x[1].flip(2))
    assert torch.equal(out[2, :, :31, 2:], x[2, :, 1:, :30])
    assert not out[2, :, :, :2].any()


def test_rates_rise_and_fall():
    recipe = Recipe(rate=1.0)
    assert recipe.rate_at(0.25) == pytest.approx(1.0)
    assert recipe.rate_at(0.0) < 0.1
    assert recipe.rate_at(1.0) == pytest.approx(0, abs=1e-12)
    assert Recipe(rate=0.3, schedule="flat").rate_at(0.9) == 0.3


def test_training_learns():
    assert trained().accuracy > 0.2  # ten classes


def test_outputs_leave_the_network_as_it_was():
    network = copy_of(trained().network)
    network.train()
    found = outputs(network, images().x, batch=70)
    assert network.training
    assert same(network, trained().network)
    network.eval()
    with torch.no_grad():
        direct = network(data.standardise(images().x)).numpy()
    assert np.allclose(found.logits, direct, atol=1e-4)
    y = images().y.numpy()
    p = probabilities(found.logits)
    assert np.allclose(p.sum(axis=1), 1)
    assert share_right(found.logits, y) == (margins(found.logits, y) > 0).mean()
