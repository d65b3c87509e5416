"""Right answers to the exercises of the lesson on hand-designed attention, written differently from
its solutions.
"""

RIGHT = {
    "softmax": [
        """
def softmax(scores):
    shifted = scores - np.max(scores, axis=-1)[..., None]
    return np.exp(shifted - np.log(np.exp(shifted).sum(-1))[..., None])
""",
        """
def softmax(scores):
    return torch.tensor(scores).softmax(-1).numpy()
""",
        """
def softmax(scores):
    # A row's weight of j is 1 / sum_k exp(s_k - s_j).
    differences = scores[..., None, :] - scores[..., :, None]
    return 1 / np.exp(np.clip(differences, None, 700)).sum(axis=-1)
""",
    ],
    "attention": [
        """
def attention(x, Km, Qm, Vm, pos=None):
    if pos is not None:
        x = np.hstack([x, pos[: x.shape[0]]])
    scores = (x @ Qm) @ (x @ Km).T * Qm.shape[1] ** -0.5
    return softmax(scores) @ x @ Vm
""",
        """
def attention(x, Km, Qm, Vm, pos=None):
    rows = x if pos is None else [np.append(token, place) for token, place in zip(x, pos)]
    result = np.zeros((len(x), Vm.shape[1]))
    for i, query in enumerate(rows):
        weights = softmax(np.array([(query @ Qm) @ (key @ Km) / math.sqrt(Km.shape[1]) for key in rows]))
        for weight, key in zip(weights, rows):
            result[i] += weight * (key @ Vm)
    return result
""",
    ],
    "transformer": [
        """
class PytorchTransformer(nn.Module):
    def __init__(self, input_dim, qk_dim, v_dim, pos_dim=None, max_seq_len=10):
        super().__init__()
        self.pos = nn.Embedding(max_seq_len, pos_dim) if pos_dim else None
        size = input_dim + (pos_dim if pos_dim else 0)
        self.Qm, self.Km = (nn.Linear(size, qk_dim, bias=False) for _ in range(2))
        self.Vm = nn.Linear(size, v_dim, bias=False)

    def forward(self, seq):
        if self.pos is not None:
            seq = torch.hstack([seq, self.pos(torch.arange(seq.shape[0]))])
        q, k, v = self.Qm(seq)[None], self.Km(seq)[None], self.Vm(seq)[None]
        return nn.functional.scaled_dot_product_attention(q, k, v)[0]
""",
        """
class PytorchTransformer(nn.Module):
    def __init__(self, input_dim, qk_dim, v_dim, pos_dim=None, max_seq_len=10):
        super().__init__()
        self.pos = None if pos_dim is None else nn.Embedding(max_seq_len, pos_dim)
        self.d_k = qk_dim
        for name, size in (("Qm", qk_dim), ("Km", qk_dim), ("Vm", v_dim)):
            setattr(self, name, nn.Linear(input_dim + (pos_dim or 0), size, bias=False))

    def forward(self, seq):
        x = seq if self.pos is None else torch.cat((seq, self.pos.weight[: seq.size(0)]), 1)
        outputs = []
        for row in x:
            weights = torch.exp(torch.log_softmax(self.Km(x) @ self.Qm(row) / math.sqrt(self.d_k), 0))
            outputs.append((weights[:, None] * self.Vm(x)).sum(0))
        return torch.stack(outputs)
""",
    ],
    "rescale": [
        """
def rescale(matrix):
    span = np.ptp(matrix)
    return (matrix - matrix.min()) / (span if span > 0 else 1)
""",
        """
def rescale(matrix):
    result = np.array(matrix, dtype=float)
    result -= result.min()
    if result.any():
        result /= result.max()
    return result
""",
    ],
    "sharpness": [
        """
def sharpness(num_keys, error):
    factor = 1
    while (num_keys - 1) * np.exp(-factor) > error:
        factor += 1
    return factor
""",
        """
def sharpness(num_keys, error):
    if num_keys < 2:
        return 1
    return int(max(np.ceil(np.log(num_keys - 1) - np.log(error)), 1))
""",
    ],
    "content-design": [
        """
def content_design():
    # Keys and queries in another basis, and one more column without use.
    basis = np.array([[1.0, 2.0, 0.0, 0.0], [0.0, 1.0, 3.0, 0.0], [1.0, 0.0, 1.0, 0.0]])
    return basis, 30 * 2 * np.linalg.pinv(basis).T, np.eye(3)
""",
        """
def content_design():
    # Two directions are enough: the corners of a triangle.
    angles = 2 * np.pi * np.arange(3) / 3
    corners = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return corners.tolist(), (20 * corners).tolist(), [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
""",
    ],
    "training-step": [
        """
def training_step(model, optimizer, seq, target, remove_cls=False):
    loss = ((model(seq)[1:] if remove_cls else model(seq)) - target).pow(2).mean()
    model.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach().numpy()[()]
""",
        """
def training_step(model, optimizer, seq, target, remove_cls=False):
    def loss_of():
        optimizer.zero_grad()
        loss = nn.MSELoss()(model(seq)[len(seq) - len(target) :], target)
        loss.backward()
        return loss

    return float(optimizer.step(loss_of))
""",
    ],
    "change-of-basis": [
        """
def change_of_basis(Km, Qm, M):
    return Km @ M, np.linalg.solve(M, Qm.T).T
""",
        """
def change_of_basis(Km, Qm, M):
    inverse = np.linalg.inv(M.T)
    return np.array([row @ M for row in Km]), np.array([row @ inverse for row in Qm])
""",
    ],
    "position-design": [
        """
def position_design():
    # The query comes from the position; keys fall with the position.
    pos = np.array([[1, 3.0], [1, 2.0], [1, 1.0], [1, 0.0]])
    Km, Qm, Vm = np.zeros((5, 1)), np.zeros((5, 1)), np.zeros((5, 3))
    Km[4], Qm[3], Vm[:3] = 12, 1, np.eye(3)
    return Km, Qm, Vm, pos
""",
        """
def position_design():
    # Every other position is pushed away; the position adds a constant to no value.
    Km = [[0, 0], [0, 0], [0, 0], [0, 0], [-5, 5], [-5, 5], [-5, 5]]
    Qm = [[4, -4], [4, -4], [4, -4], [0, 0], [0, 0], [0, 0], [0, 0]]
    Vm = [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]]
    return Km, Qm, Vm, np.eye(4).tolist()
""",
    ],
    "both-design": [
        """
def both_design():
    # The library's head in another basis, with larger values.
    from glassformer.handcraft import design

    made = design(TASKS["unique"]()).weights
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(made.qk_dim, made.qk_dim)))[0]
    return made.Km @ turn, made.Qm @ turn, 3 * made.Vm, made.pos
""",
        """
def both_design():
    pos = 2 * np.eye(5)
    Km, Qm, Vm = np.zeros((9, 9)), np.zeros((9, 9)), np.zeros((9, 1))
    Km[:3, :3] = Qm[:3, :3] = np.eye(3)
    Km[4:, 3:8], Qm[4:, 3:8] = np.eye(5), -np.eye(5) / 4
    Km[3, 8], Qm[:3, 8] = 1, 1 / 2
    Vm[:4, 0] = [-1, -1, -1, 2]
    return Km, 60 * Qm, Vm, pos
""",
    ],
}
