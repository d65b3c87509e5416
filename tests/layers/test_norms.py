import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.layers.norms import RMSNorm
from refusals import refused


@given(
    st.lists(st.integers(1, 4), max_size=3),
    st.sampled_from([1, 3, 16, 64]),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    st.sampled_from([1e-5, 1e-2, 1.0]),
)
@settings(deadline=None)
def test_it_is_torchs(batch: list[int], hidden_dim: int, dtype: torch.dtype, eps: float) -> None:
    draw = torch.Generator().manual_seed(0)
    ours = RMSNorm(hidden_dim, eps).to(dtype)
    theirs = torch.nn.RMSNorm(hidden_dim, eps=eps).to(dtype)
    with torch.no_grad():
        ours.weight.copy_(torch.randn(hidden_dim, generator=draw))
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(*batch, hidden_dim, dtype=dtype, generator=draw)
    before = x.clone()
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 5e-2}[dtype]
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            got = ours(x)
            expected = theirs(x)
        assert got.dtype == dtype
        torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)
    assert torch.equal(x, before)


def test_bad_input_is_refused() -> None:
    with refused("hidden_dim = 0"):
        RMSNorm(0)
    with refused(r"eps = 0\.0"):
        RMSNorm(4, 0.0)
