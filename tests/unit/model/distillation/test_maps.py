"""The maps of a student: where it needs some, from the seed alone, and gone when it is finished."""

from torch import nn

from bertsmith.model.distillation.maps import add_maps, maps_of, without_maps


def student(width: int, seed: int = 1) -> nn.Module:
    model = nn.Linear(2, 2)
    add_maps(model, 3, (width, 6), seed)
    return model


def test_a_narrower_student_has_a_map_for_each_pair_of_layers() -> None:
    maps = maps_of(student(4))
    assert maps is not None
    assert [tuple(each.weight.shape) for each in maps] == [(6, 4)] * 3
    assert maps_of(student(6)) is None


def test_the_seed_alone_decides_the_maps() -> None:
    one, same, other = (maps_of(student(4, seed)) for seed in (1, 1, 2))
    assert one is not None
    assert same is not None
    assert other is not None
    for ours, equal, differs in zip(one, same, other, strict=True):
        assert ours.weight.equal(equal.weight)
        assert not ours.weight.equal(differs.weight)


def test_a_finished_student_has_no_maps() -> None:
    model = student(4)
    assert "hidden_maps.0.weight" in model.state_dict(), "as checkpoints name it"
    assert without_maps(model) is model
    assert (
        without_maps(student(6)).state_dict().keys() == model.state_dict().keys() == nn.Linear(2, 2).state_dict().keys()
    )
