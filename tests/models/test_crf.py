"""The CRF loss, compared with enumeration of all label sequences and with the runtime's decoding."""

from itertools import pairwise, product

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from bert_models.crf import IGNORE_INDEX, LinearChainCrf, compact_labelled, log_partition
from bert_runtime.crf import marginals, viterbi


def random_crf(labels: int, seed: int = 0) -> LinearChainCrf:
    crf = LinearChainCrf(labels)
    with torch.no_grad():
        crf.transitions.normal_(generator=torch.Generator().manual_seed(seed))
    return crf


def random_batch(num_sequences: int, length: int, labels: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    emissions = 2 * torch.randn(num_sequences, length, labels, generator=generator)
    return emissions, torch.randint(labels, (num_sequences, length), generator=generator)


def enumerated(emissions: Tensor, transitions: Tensor, path: list[int]) -> float:
    """Compute the negative log-likelihood of one sequence, [T, L] and T labels, by enumerating all label sequences."""
    scores, moves = emissions.double().numpy(), transitions.detach().double().numpy()
    length, labels = scores.shape

    def score(candidate: tuple[int, ...]) -> float:
        ends = moves[labels, candidate[0]] + moves[labels + 1, candidate[-1]]
        return ends + scores[range(length), candidate].sum() + sum(moves[pair] for pair in pairwise(candidate))

    weights = [np.exp(score(candidate)) for candidate in product(range(labels), repeat=length)]
    return float(np.log(sum(weights)) - score(tuple(path)))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("length", "labels"), [(1, 1), (1, 3), (2, 2), (4, 3), (5, 4)])
def test_loss_equals_that_of_enumeration(length: int, labels: int, seed: int) -> None:
    crf = random_crf(labels, seed)
    emissions, gold = random_batch(3, length, labels, seed)
    rows = zip(emissions, gold.tolist(), strict=True)
    expected = sum(enumerated(row, crf.transitions, path) for row, path in rows) / gold.numel()
    assert crf(emissions, gold).item() == pytest.approx(expected, abs=1e-5)


def test_sequences_weigh_by_their_number_of_labels() -> None:
    crf = random_crf(3)
    emissions, gold = random_batch(4, 5, 3)
    lengths = [5, 1, 0, 3]
    total = 0.0
    for i, length in enumerate(lengths):
        gold[i, length:] = IGNORE_INDEX
        if length:
            total += enumerated(emissions[i, :length], crf.transitions, gold[i, :length].tolist())
    assert crf(emissions, gold).item() == pytest.approx(total / sum(lengths), abs=1e-5)


def test_untrained_crf_has_the_token_cross_entropy() -> None:
    emissions, gold = random_batch(4, 9, 5)
    gold[torch.rand(gold.shape, generator=torch.Generator().manual_seed(1)) < 0.4] = IGNORE_INDEX
    expected = F.cross_entropy(emissions.flatten(0, 1), gold.flatten())
    torch.testing.assert_close(LinearChainCrf(5)(emissions, gold), expected)


def test_unlabelled_tokens_are_not_part_of_the_chain() -> None:
    """Loss and gradients are those of the sequences without them, whatever their emissions are."""
    crf = random_crf(4)
    dense, gold = random_batch(2, 3, 4)
    positions = torch.tensor([[1, 2, 6], [0, 4, 5]])
    sparse = torch.full((2, 8, 4), float("inf")).scatter(1, positions.unsqueeze(-1).expand(-1, -1, 4), dense)
    labels = torch.full((2, 8), IGNORE_INDEX).scatter(1, positions, gold)
    losses, gradients = [], []
    for emissions, target in ((dense, gold), (sparse, labels)):
        emissions.requires_grad_()
        losses.append(crf(emissions, target))
        gradients.append(torch.autograd.grad(losses[-1], [emissions, crf.transitions]))
    torch.testing.assert_close(losses[0], losses[1])
    holes = gradients[1][0].masked_fill((labels != IGNORE_INDEX).unsqueeze(-1), 0)
    assert not holes.any()
    kept = gradients[1][0].gather(1, positions.unsqueeze(-1).expand(-1, -1, 4))
    torch.testing.assert_close((kept, gradients[1][1]), gradients[0])


def test_sequences_without_labels_have_no_effect() -> None:
    crf = random_crf(3)
    emissions, gold = random_batch(3, 4, 3)
    alone = crf(emissions[:2], gold[:2])
    gold[2] = IGNORE_INDEX
    together = crf(emissions, gold)
    torch.testing.assert_close(alone, together)
    torch.testing.assert_close(*(torch.autograd.grad(loss, [crf.transitions]) for loss in (alone, together)))


def test_batch_without_labels_has_zero_loss_and_gradients() -> None:
    crf = random_crf(3)
    emissions, gold = random_batch(2, 4, 3)
    loss = crf(emissions.requires_grad_(), torch.full_like(gold, IGNORE_INDEX))
    assert loss.shape == ()
    assert loss.item() == 0
    loss.backward()
    for gradient in (emissions.grad, crf.transitions.grad):
        assert gradient is not None
        assert not gradient.any()


def test_gradient_of_log_partition_equals_the_runtimes_marginals() -> None:
    crf = random_crf(4)
    emissions, gold = random_batch(3, 7, 4)
    gold[1, 5:] = gold[2, ::2] = IGNORE_INDEX
    chains, _, mask = compact_labelled(emissions, gold)
    chains.requires_grad_()
    (found,) = torch.autograd.grad(log_partition(chains, mask, crf.transitions).sum(), chains)
    for i, length in enumerate(mask.sum(dim=1).tolist()):
        expected = marginals(chains[i, :length].detach().numpy(), crf.transitions.detach().numpy())
        np.testing.assert_allclose(found[i, :length].numpy(), expected, atol=1e-5)
        assert not found[i, length:].any()


def test_viterbi_path_has_the_minimum_loss() -> None:
    crf = random_crf(3)
    emissions, _ = random_batch(1, 4, 3)
    best = viterbi(emissions[0].numpy(), crf.transitions.detach().numpy())
    losses = {path: crf(emissions, torch.tensor([path])).item() for path in product(range(3), repeat=4)}
    assert min(losses, key=lambda path: losses[path]) == tuple(best)


def test_loss_is_computed_in_float32_under_autocast() -> None:
    crf = random_crf(5)
    emissions, gold = random_batch(2, 64, 5)
    halved = emissions.bfloat16()
    expected = crf(halved.float(), gold)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = crf(halved, gold)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_training_learns_transitions() -> None:
    """Emissions predict the first label of every pair; only transitions predict the second one."""
    generator = torch.Generator().manual_seed(3)
    first = torch.randint(2, (64, 5), generator=generator)
    gold = torch.stack([first, first + 2], dim=2).flatten(1)  # 0 → 2 and 1 → 3
    emissions = torch.zeros(64, 10, 4)
    emissions[:, ::2, :2] = 4 * F.one_hot(first, 2).float()
    crf = LinearChainCrf(4)
    optimizer = torch.optim.Adam(crf.parameters(), lr=0.3)
    for _ in range(40):
        optimizer.zero_grad()
        crf(emissions, gold).backward()
        optimizer.step()
    moves = crf.transitions.detach()
    decoded = np.stack([viterbi(scores, moves.numpy()) for scores in emissions.numpy()])
    assert (emissions.argmax(dim=2) != gold).float().mean() > 0.3
    np.testing.assert_array_equal(decoded, gold.numpy())
    assert moves[0].argmax() == 2
    assert moves[1].argmax() == 3
