import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sodap.prompting import MemoryBank


def test_read_is_multi_head_attention() -> None:
    bank = MemoryBank(24, slots=5, heads=4)
    for projection in (bank.to_query, bank.to_key, bank.to_value, bank.to_output):
        nn.init.normal_(projection.bias)
    nn.init.normal_(bank.keys)
    reference = nn.MultiheadAttention(24, 4)
    with torch.no_grad():
        layers = (bank.to_query, bank.to_key, bank.to_value)
        reference.in_proj_weight.copy_(torch.cat([layer.weight for layer in layers]))
        reference.in_proj_bias.copy_(torch.cat([layer.bias for layer in layers]))
        reference.out_proj.weight.copy_(bank.to_output.weight)
        reference.out_proj.bias.copy_(bank.to_output.bias)
    query = 7 * torch.randn(3, 24) + 2
    retrieved, attention = bank(query)
    expected, weights = reference(F.layer_norm(query, (24,)), bank.keys, bank.values)
    torch.testing.assert_close(retrieved, expected)
    torch.testing.assert_close(attention.mean(1), weights)
    signal = torch.randn(3, 24)
    (retrieved * signal).sum().backward()
    (expected * signal).sum().backward()
    assert reference.in_proj_weight.grad is not None
    for layer, grad in zip(layers, reference.in_proj_weight.grad.view(3, 24, 24), strict=True):
        torch.testing.assert_close(layer.weight.grad, grad)
    torch.testing.assert_close(bank.to_output.weight.grad, reference.out_proj.weight.grad)


def naive_write(slots: Tensor, queries: list[Tensor], attentions: list[Tensor]) -> Tensor:
    written = slots.clone()
    for j in range(len(slots)):
        targets = []
        for query, attention in zip(queries, attentions, strict=True):
            q = F.layer_norm(query, query.shape[-1:])
            mass = attention[:, j].sum()
            if mass > 1e-4 * len(query):
                targets.append(sum(attention[b, j] * q[b] for b in range(len(q))) / mass)
        if targets:
            written[j] = 0.9 * slots[j] + 0.1 * torch.stack(targets).mean(0)
    return written


def test_write_follows_the_attending_queries() -> None:
    bank = MemoryBank(8, slots=4, heads=2, momentum=0.9)
    queries = [torch.randn(6, 8, requires_grad=True) for _ in range(3)]
    attentions = [torch.randn(6, 4).softmax(-1) for _ in range(3)]
    attentions[0][:, 1] = 0  # not asked in one layer
    for attention in attentions:
        attention[:, 2] = 1e-9  # nor in any
    keys, values = bank.keys.clone(), bank.values.clone()
    # Two heads that differ from their mean by as much as each other.
    swing = 1e-3 * torch.rand(6, 4)
    bank.write(queries, [torch.stack([a + swing, a - swing], 1) for a in attentions])
    torch.testing.assert_close(bank.keys, naive_write(keys, queries, attentions))
    torch.testing.assert_close(bank.values, naive_write(values, queries, attentions))
    torch.testing.assert_close(bank.keys[2], keys[2], atol=0, rtol=0)
    assert not bank.keys.requires_grad


def test_writing_before_backward_is_safe() -> None:
    bank = MemoryBank(8, slots=4, heads=2)
    query = torch.randn(3, 8)
    retrieved, attention = bank(query)
    bank.write([query], [attention])
    torch.autograd.backward(retrieved.sum())
    assert bank.to_key.weight.grad is not None


def test_slots_learn_one_way_or_the_other() -> None:
    written, learned = MemoryBank(8, heads=2), MemoryBank(8, heads=2, learnable=True)
    assert {"keys", "values"} <= dict(written.named_buffers()).keys()
    assert {"keys", "values"} <= dict(learned.named_parameters()).keys()
    before = learned.keys.clone()
    learned.write([torch.randn(3, 8)], [torch.rand(3, 2, 9)])
    torch.testing.assert_close(learned.keys, before, atol=0, rtol=0)
    torch.autograd.backward(learned(torch.randn(3, 8))[0].sum())
    assert learned.values.grad is not None


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(ValueError, match="heads"):
        MemoryBank(8, heads=3)
