from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from unseen.core.errors import UserError
from unseen.nets.backbones import create_net
from unseen.nets.net import Bottleneck, Net
from unseen.nets.norms.layers import XAN, StatNorm2d, make_pluggable

# backbone, image size, channels after each stage, features, shape of the last maps
FAMILIES = [
    ("resnet18", 64, (64, 128, 256, 512), 512, (512, 2, 2)),
    ("densenet121", 64, (128, 256, 512, 1024), 1024, (1024, 2, 2)),
    ("mobilenetv2_100", 64, (24, 32, 96, 1280), 1280, (1280, 2, 2)),
    ("mobilenetv3_small_100", 64, (16, 24, 48, 576), 1024, (576, 2, 2)),
    ("vit_tiny_patch16_224", 64, (192,) * 4, 192, (192, 1, 17)),
    ("convnet", 32, (32, 64, 64, 64), 256, (64, 4, 4)),
    ("convnet", 16, (32, 64, 64, 64), 256, (64, 2, 2)),
    ("convnet", 50, (32, 64, 64, 64), 256, (64, 6, 6)),
    ("convnet_dg", 32, (64, 64, 64, 64), 256, (64, 2, 2)),
    ("convnet_dg", 16, (64, 64, 64, 64), 64, (64, 1, 1)),
    ("alexnet", 64, (64, 192, 256, 256), 4096, (256, 1, 1)),
]


def images(size: int, number: int = 2) -> Tensor:
    return torch.rand(number, 3, size, size, generator=torch.Generator().manual_seed(1))


def parameters(net: Net) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


@pytest.mark.parametrize(("name", "size", "channels", "features", "maps"), FAMILIES)
def test_shapes_and_composition(
    name: str, size: int, channels: tuple[int, ...], features: int, maps: tuple[int, ...]
) -> None:
    net = create_net(name, 7, image_size=size).eval()
    x = images(size)
    assert net.stages == len(channels)
    assert net.stage_channels == channels
    assert net.map_channels == channels[-1]
    assert net.feature_size == features
    assert net.backbone_name == name
    y = x
    for stage in range(net.stages):
        y = net.run_stage(stage, y)
        assert y.shape[:2] == (2, channels[stage])
    assert torch.equal(y, net.maps(x))
    assert y.shape == (2, *maps)
    assert torch.equal(net.pool(y), net.features(x))
    assert torch.equal(net.head(net.features(x)), net(x))
    assert net(x).shape == (2, 7)


@pytest.mark.parametrize(
    "name", ["resnet18", "densenet121", "mobilenetv2_100", "mobilenetv3_small_100", "vit_tiny_patch16_224"]
)
def test_stages_are_timms_own_forward_pass(name: str) -> None:
    net = create_net(name, 7, image_size=64).eval()
    x = images(64)
    normalised = (x - net.pixel_mean) / net.pixel_std
    expected = net.backbone.forward_head(net.backbone.forward_features(normalised), pre_logits=True)  # type: ignore[operator]
    torch.testing.assert_close(net.features(x), expected, rtol=1e-4, atol=1e-5)


def test_every_parameter_gets_a_gradient() -> None:
    for name, size in (("mobilenetv2_100", 64), ("vit_tiny_patch16_224", 64), ("convnet", 32), ("convnet_dg", 32)):
        net = create_net(name, 5, image_size=size, bottleneck=16)
        net(images(size, 4)).square().sum().backward()
        assert [key for key, parameter in net.named_parameters() if parameter.grad is None] == []


def test_resnet18_has_the_papers_parameter_counts() -> None:
    assert parameters(create_net("resnet18", 7, image_size=32, bottleneck=256)) == 11_310_151
    assert parameters(create_net("resnet18", 7, image_size=32)) == 11_180_103


def test_the_convnet_of_digits_dg_is_the_published_one() -> None:
    net = create_net("convnet_dg", 10, image_size=32).eval()
    assert not net.norms(nn.BatchNorm2d)
    convolutions = 3 * 64 * 9 + 64 + 3 * (64 * 64 * 9 + 64)
    assert parameters(net) == convolutions + 256 * 10 + 10
    x = images(32)
    y = (x - 0.5) / 0.5
    for convolution in net.norms(nn.Conv2d):
        assert convolution.bias is not None and not convolution.bias.any()
        y = nn.functional.max_pool2d(convolution(y).relu(), 2)
    torch.testing.assert_close(net.features(x), y.flatten(1))


def test_bottleneck_sits_between_pooling_and_head() -> None:
    net = create_net("convnet", 10, image_size=32, bottleneck=16).eval()
    x = images(32)
    assert isinstance(net.neck, Bottleneck)
    assert net.feature_size == 16
    linear, norm, _ = net.neck
    assert isinstance(linear, nn.Linear) and isinstance(norm, nn.BatchNorm1d)
    pooled = nn.functional.max_pool2d(net.maps(x), 2).flatten(1)
    torch.testing.assert_close(net.features(x), (linear(pooled) / (1 + norm.eps) ** 0.5).relu())


def test_same_seed_same_bits_and_the_global_generator_stays() -> None:
    torch.manual_seed(3)
    a = create_net("convnet", 10, image_size=32, seed=5).state_dict()
    after = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(after, torch.rand(1))
    b = create_net("convnet", 10, image_size=32, seed=5).state_dict()
    c = create_net("convnet", 10, image_size=32, seed=6).state_dict()
    assert all(torch.equal(a[key], b[key]) for key in a)
    assert not torch.equal(a["head.weight"], c["head.weight"])


def test_input_constants_are_not_state() -> None:
    net = create_net("convnet", 10, image_size=32)
    assert not any("pixel" in key for key in net.state_dict())
    share = net.share_all()
    assert share.up == share.down == frozenset(net.state_dict())


def test_unknown_and_unsupported_backbones_are_errors_for_people() -> None:
    with pytest.raises(UserError, match='Did you mean "resnet18"'):
        create_net("resnet19", 7, image_size=64)
    with pytest.raises(UserError, match="convnet, convnet_dg, alexnet, alexnet_bn"):
        create_net("nothing", 7, image_size=64)
    with pytest.raises(UserError, match="SwinTransformer"):
        create_net("swin_tiny_patch4_window7_224", 7, image_size=64)
    with pytest.raises(UserError, match="64 px"):
        create_net("alexnet", 7, image_size=32)


def test_inserted_modules_run_in_order_after_their_stage() -> None:
    class Add(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + 1

    class Double(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.tensor(2.0))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.factor

    net = create_net("convnet", 10, image_size=32).eval()
    x = images(32)
    before = net.run_stage(1, net.run_stage(0, x))
    net.insert(1, Add())
    net.insert(1, Double())
    torch.testing.assert_close(net.run_stage(1, net.run_stage(0, x)), (before + 1) * 2)
    assert any(parameter is net.norms(Double)[0].factor for parameter in net.trainable())
    assert len(net.state_of(Double)) == 1


@pytest.mark.parametrize("name", ["resnet18", "densenet121", "mobilenetv2_100", "convnet", "alexnet_bn"])
def test_replacing_norms_keeps_outputs_and_state_names(name: str) -> None:
    net = create_net(name, 7, image_size=64, bottleneck=8).eval()
    with torch.no_grad():  # statistics that are not 0 and 1, or nothing would be tested
        for norm in net.norms(nn.BatchNorm2d):
            assert norm.running_mean is not None and norm.running_var is not None
            norm.running_mean.normal_(0, 0.1)
            norm.running_var.uniform_(0.5, 2)
    x = images(64)
    expected, keys = net(x), list(net.state_dict())
    number = len(net.norms(nn.BatchNorm2d))
    make_pluggable(net)
    assert len(net.norms(StatNorm2d)) == number
    assert list(net.state_dict()) == keys
    torch.testing.assert_close(net(x), expected)
    assert not net.norms(StatNorm2d)[0].training
    make_pluggable(net)  # twice: activations must not run twice
    torch.testing.assert_close(net(x), expected)


def test_replacing_the_norms_of_the_first_stages_only() -> None:
    for name, first, every in (("resnet18", 5, 20), ("densenet121", 13, 121), ("mobilenetv2_100", 9, 52)):
        net = create_net(name, 7, image_size=64)
        net.replace_norms(XAN, stages=1)
        assert len(net.norms(XAN)) == first  # of a DenseNet: block and transition, not the stem
        net = create_net(name, 7, image_size=64)
        net.replace_norms(XAN, stages=4)
        assert len(net.norms(XAN)) == every == len(create_net(name, 7, image_size=64).replace_norms(XAN).norms(XAN))


def test_state_by_type_has_the_downsample_norms() -> None:
    net = create_net("resnet18", 7, image_size=32)
    kind = nn.modules.batchnorm._BatchNorm
    keys = net.state_of(kind)
    assert len(keys) == 100
    assert sum("downsample" in key for key in keys) == 15
    assert len(net.running_statistics()) == 60
    assert net.running_statistics() < keys
    assert len(create_net("resnet18", 7, image_size=32, bottleneck=8).running_statistics()) == 63


def test_state_of_a_part() -> None:
    net = create_net("resnet18", 7, image_size=32).replace_norms(XAN, stages=1)
    kept = net.state_of(XAN, part="bn")
    assert len(kept) == 5 * 6  # weight, bias, three statistics and the score
    assert "backbone.bn1.bn.score" in kept and "backbone.bn1.score" not in kept
    assert net.state_of(XAN, part="score") == {key for key in net.state_dict() if key.endswith("score")} - kept


def test_bfloat16_autocast() -> None:
    net = create_net("convnet", 10, image_size=32)
    make_pluggable(net)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = net(images(32, 4))
    logits.float().sum().backward()
    assert logits.isfinite().all()


def test_no_activation_makes_autograd_copy_its_input() -> None:
    """In place, an activation whose gradient needs what came in costs a copy of the maps."""
    net = create_net("mobilenetv2_100", 3, image_size=32)
    activation = next(module for module in net.modules() if isinstance(module, nn.ReLU6))
    maps = torch.rand(2, 3, 4, 4, requires_grad=True) * 1
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        activation(maps)
    assert [tensor.data_ptr() for tensor in kept] == [maps.data_ptr()]
