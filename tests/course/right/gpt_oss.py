"""Right answers to the exercises of the GPT-OSS lesson, written differently from its solutions."""

from functools import partial

from course.checked import filled

with_body = partial(filled, "gpt_oss")

GENERATE = """
@torch.no_grad()
def token_choice_greedy(model_logits):
    return model_logits[:, -1:].argmax(dim=-1)


@torch.no_grad()
def generate(model, input, gen_length, token_choice=token_choice_greedy):
    model.eval()
    {body}
"""
BLOCK = """
        attention = (hidden_dim, num_heads, head_dim)
        self.attention = (
            SWAttention(*attention, window_size, num_kv_heads=num_kv_heads)
            if use_sliding_window
            else GroupedQueryAttention(*attention, num_kv_heads=num_kv_heads)
        )
        self.ffn = (
            MixtureOfExperts(hidden_dim, ff_dim, num_experts=num_experts, top_k=top_k)
            if use_moe
            else SwiGLUFeedForward(hidden_dim, ff_dim)
        )
        self.attention_norm, self.ffn_norm = nn.RMSNorm(hidden_dim, 1e-5), nn.RMSNorm(hidden_dim, 1e-5)
"""

TRANSFORMER = """
        self.embedding = nn.Embedding(vocab_size, hidden_dim)
        self.layers = {layers}
        for layer in range(n_layers):
            windowed = use_sliding_window_alternating and bool(layer % 2)
            self.layers.append(TransformerBlock(hidden_dim, ff_dim, num_heads, head_dim, windowed, *options))
        self.final_norm = nn.RMSNorm(hidden_dim, eps=1e-5)
        self.output_proj = nn.Linear(hidden_dim, vocab_size, bias=False)
"""

ATTENTION = """
        self.query = nn.Linear(hidden_dim, num_heads * head_dim, bias=False)
        self.output = nn.Linear(num_heads * head_dim, hidden_dim, bias=False)
        self.key, self.value = (nn.Linear(hidden_dim, self.num_kv_heads * head_dim, bias=False) for _ in range(2))
        self.key_weights = nn.Parameter(torch.ones(num_heads))
"""

RIGHT = {
    "coefficients": [
        """
def coefficients():
    tokens, size = puzzle(check.seed), recurrence(check.seed).vocab_size
    pairs = [(a, b) for a in range(size) for b in range(size)]
    for x, y, z in zip(tokens, tokens[1:], tokens[2:]):
        pairs = [(a, b) for a, b in pairs if (a * x + b * y - z) % size == 0]
    return pairs[0]
""",
        """
def coefficients():
    tokens, size = puzzle(check.seed), recurrence(check.seed).vocab_size
    tokens = np.array(tokens)
    for number in range(size * size):
        pair = np.array([number // size, number % size])
        if np.array_equal(np.stack([tokens[:-2], tokens[1:-1]], 1) @ pair % size, tokens[2:]):
            return [int(each) - size for each in pair]  # equal modulo the size
""",
    ],
    "rms-norm": [
        """
def rms_norm(x, weight, eps=1e-5):
    return x * torch.rsqrt(torch.mean(x * x, -1, True) + eps) * weight
""",
        """
def rms_norm(x, weight, eps=1e-5):
    dim = x.shape[-1]
    length = torch.linalg.vector_norm(torch.cat([x, torch.full_like(x[..., :1], (eps * dim) ** 0.5)], -1), dim=-1)
    return torch.einsum("...i,i,...->...i", x, weight, dim**0.5 / length)
""",
    ],
    "swiglu": [
        """
class SwiGLUFeedForward(nn.Module):
    def __init__(self, hidden_dim, inner_dim):
        super().__init__()
        self.down = nn.Linear(inner_dim, hidden_dim, bias=False)
        self.up, self.gate = (nn.Linear(hidden_dim, inner_dim, bias=False) for _ in range(2))

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))
""",
        """
class SwiGLUFeedForward(nn.Module):
    def __init__(self, hidden_dim, inner_dim):
        super().__init__()
        self.gate = nn.Linear(hidden_dim, inner_dim, False)
        self.up = nn.Linear(hidden_dim, inner_dim, False)
        self.down = nn.Linear(inner_dim, hidden_dim, False)

    def forward(self, x):
        h1, hv = x @ self.gate.weight.T, x @ self.up.weight.T
        return h1 / (1 + torch.exp(-h1)) * hv @ self.down.weight.T
""",
    ],
    "rotation": [
        """
class RotaryPositionalEmbedding(nn.Module):
    def __init__(self, head_dim, max_seq_len=2048, base=10000.0):
        super().__init__()
        speeds = 1.0 / base ** (torch.arange(0, head_dim, 2).float() / head_dim)
        angles = torch.outer(torch.arange(max_seq_len).float(), speeds)
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles))

    def forward(self, x, start_pos=0):
        pairs = torch.complex(*x.chunk(2, -1)) * self.turns[start_pos : start_pos + x.shape[2]]
        return torch.cat([pairs.real, pairs.imag], -1)
""",
        """
class RotaryPositionalEmbedding(nn.Module):
    def __init__(self, head_dim, max_seq_len=2048, base=10000.0):
        super().__init__()
        half = head_dim // 2
        speeds = [base ** (-pair / half) for pair in range(half)]
        angles = torch.tensor([[at * speed for speed in speeds * 2] for at in range(max_seq_len)])
        self.cos, self.sin = angles.cos(), angles.sin()

    def forward(self, x, start_pos=0):
        rows = slice(start_pos, start_pos + x.size(2))
        half = x.size(-1) // 2
        turned = torch.cat([-x[..., half:], x[..., :half]], -1)
        return x * self.cos[rows] + turned * self.sin[rows]
""",
    ],
    "mask": [
        """
def causal_mask(length, window_size=None):
    ones = torch.ones(length, length)
    mask = torch.tril(ones)
    if window_size is not None:
        mask = torch.triu(mask, diagonal=-window_size)
    return mask.bool()
""",
        """
def causal_mask(length, window_size=None):
    before = length if window_size is None else window_size
    return torch.tensor([[max(0, i - before) <= j <= i for j in range(length)] for i in range(length)])
""",
    ],
    "grouping": [
        """
def share_heads(x, num_heads):
    batch, heads, length, head_dim = x.shape
    return x[:, :, None].expand(-1, -1, num_heads // heads, -1, -1).reshape(batch, num_heads, length, head_dim)
""",
        """
def share_heads(x, num_heads):
    group = num_heads // x.shape[1]
    return torch.stack([x[:, head // group] for head in range(num_heads)], dim=1)
""",
    ],
    "attention": [
        """
def calculate_attention(q, k, v, key_weights, rope, scale, device, mask=None):
    if mask is None:
        mask = torch.tril(torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=device))
    group = q.shape[1] // k.shape[1]
    heads = []
    for head in range(q.shape[1]):
        scores = rope(q)[:, head] @ rope(k)[:, head // group].mT * key_weights[head] * scale
        heads.append(torch.softmax(scores.where(mask, -torch.inf), -1) @ v[:, head // group])
    return torch.stack(heads, 1)
""",
        """
def calculate_attention(q, k, v, key_weights, rope, scale, device, mask=None):
    length, kv_heads = q.shape[2], k.shape[1]
    allowed = causal_mask(length) if mask is None else mask
    added = torch.zeros(length, length, dtype=q.dtype, device=device).masked_fill(allowed.logical_not(), -torch.inf)
    q = rope(q * key_weights[:, None, None] * scale).unflatten(1, (kv_heads, -1))
    scores = torch.einsum("bghqd,bgkd->bghqk", q, rope(k)) + added
    weights = torch.exp(scores - scores.amax(-1, True))
    return torch.einsum("bghqk,bgkd->bghqd", weights / weights.sum(-1, True), v).flatten(1, 2)
""",
    ],
    "grouped-attention": [
        with_body(
            "grouped-attention",
            ATTENTION,
            """
        split = lambda y: y.unflatten(-1, (-1, self.head_dim)).permute(0, 2, 1, 3)
        q, k, v = split(self.query(x)), split(self.key(x)), split(self.value(x))
        heads = calculate_attention(q, k, v, self.key_weights, self.rope, self.scale, x.device, self.mask(x.shape[1]))
        return self.output(torch.cat(list(heads.unbind(1)), dim=-1))
""",
        ),
        with_body(
            "grouped-attention",
            ATTENTION,
            """
        batch, length, _ = x.shape
        q = self.query(x).reshape(batch, length, self.num_heads, self.head_dim).swapaxes(1, 2)
        k = self.key(x).reshape(batch, length, self.num_kv_heads, self.head_dim).swapaxes(1, 2)
        v = self.value(x).reshape(batch, length, self.num_kv_heads, self.head_dim).swapaxes(1, 2)
        group = self.num_heads // self.num_kv_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = self.rope(q) @ self.rope(k).mT * self.scale * self.key_weights.view(1, -1, 1, 1)
        weights = scores.masked_fill(~self.mask(length), -1e30).softmax(-1)
        matrix = self.output.weight.view(-1, self.num_heads, self.head_dim)
        return torch.einsum("bhld,ohd->blo", weights @ v, matrix)
""",
        ),
    ],
    "sliding-attention": [
        with_body(
            "sliding-attention",
            """
    at = torch.arange(q.size(-2), device=device)
    mask = (at[None] <= at[:, None]) & (at[None] >= at[:, None] - window_size)
    return calculate_attention(q, k, v, key_weights, rope, scale, device, mask=mask)
""",
        ),
        with_body(
            "sliding-attention",
            """
    group = q.shape[1] // k.shape[1]
    q, k = rope(q), rope(k).repeat_interleave(group, 1) * key_weights[:, None, None]
    v = v.repeat_interleave(group, 1)
    rows = []
    for at in range(q.shape[2]):
        seen = slice(max(0, at - window_size), at + 1)
        weights = (scale * q[:, :, at : at + 1] @ k[:, :, seen].mT).softmax(-1)
        rows.append(weights @ v[:, :, seen])
    return torch.cat(rows, 2)
""",
        ),
    ],
    "sink": [
        """
def softmax_with_sink(scores, sinks):
    sinks = sinks.view(-1, 1, 1)
    largest = torch.maximum(scores.amax(-1, keepdim=True), sinks).detach()
    powers = (scores - largest).exp()
    return powers / (powers.sum(-1, keepdim=True) + (sinks - largest).exp())
""",
        """
def softmax_with_sink(scores, sinks):
    total = torch.logsumexp(scores, dim=-1, keepdim=True)
    return scores.softmax(-1) * torch.sigmoid(total - sinks[:, None, None])
""",
    ],
    "router": [
        with_body(
            "router",
            """
        shares = self.score(x).softmax(-1)
        order = shares.argsort(-1, descending=True)[..., : self.top_k].flip(-1)
        best = shares.gather(-1, order)
        return best / best.sum(-1, keepdim=True), order
""",
        ),
        with_body(
            "router",
            """
        scores = x @ self.score.weight.T
        values, indices = torch.sort(scores, dim=2, descending=True)
        values, indices = values[:, :, : self.top_k], indices[:, :, : self.top_k]
        powers = torch.exp(values - values[:, :, :1])
        return powers / powers.sum(2, keepdim=True), indices
""",
        ),
    ],
    "mixture": [
        with_body(
            "mixture",
            """
        weights, indices = self.router(x)
        every = torch.stack([expert(x) for expert in self.experts], dim=2)
        chosen = every.gather(2, indices[..., None].expand(-1, -1, -1, x.shape[-1]))
        return (weights[..., None] * chosen).sum(2)
""",
        ),
        with_body(
            "mixture",
            """
        weights, indices = self.router(x)
        rows = []
        for token, shares, experts in zip(x.flatten(0, 1), weights.flatten(0, 1), indices.flatten(0, 1)):
            rows.append(sum(share * self.experts[int(expert)](token) for share, expert in zip(shares, experts)))
        return torch.stack(rows).view(x.shape)
""",
        ),
    ],
    "block": [
        with_body(
            "block",
            BLOCK,
            """
        attended = x + self.attention(self.attention_norm(x))
        return attended + self.ffn(self.ffn_norm(attended))
""",
        ),
        with_body(
            "block",
            BLOCK,
            """
        for norm, part in ((self.attention_norm, self.attention), (self.ffn_norm, self.ffn)):
            x = part(rms_norm(x, norm.weight)) + x
        return x
""",
        ),
    ],
    "transformer": [
        with_body(
            "transformer",
            TRANSFORMER.format(layers="nn.ModuleList()"),
            """
        hidden = functools.reduce(lambda x, layer: layer(x), self.layers, self.embedding(tokens))
        return self.output_proj(self.final_norm(hidden))
""",
        ),
        with_body(
            "transformer",
            TRANSFORMER.format(layers="nn.Sequential()"),
            """
        hidden = self.layers(self.embedding.weight[tokens])
        return self.final_norm(hidden) @ self.output_proj.weight.T
""",
        ),
    ],
    "training-step": [
        with_body(
            "training-step",
            """
            optimizer.zero_grad(set_to_none=False)
            loss = F.cross_entropy(model(x).transpose(1, 2), y)
            total_loss += float(loss.detach())
            loss.backward()
            optimizer.step()
""",
        ),
        with_body(
            "training-step",
            """
            model.zero_grad()
            chances = model(x).log_softmax(-1).gather(-1, y[..., None])
            loss = -chances.sum() / y.numel()
            loss.backward()
            optimizer.step()
            total_loss = total_loss + loss.item()
""",
        ),
    ],
    "generation": [
        GENERATE.format(
            body="""
    start = input.shape[1]
    for _ in range(gen_length):
        input = torch.hstack([input, token_choice(model(input))])
    return input[:, start:]
"""
        ),
        GENERATE.format(
            body="""
    rows = torch.zeros(len(input), gen_length, dtype=torch.long)
    for step in range(gen_length):
        rows[:, step : step + 1] = token_choice(model(torch.cat([input, rows[:, :step]], dim=-1)))
    return rows
"""
        ),
    ],
    "nucleus": [
        """
@torch.no_grad()
def get_dist_after_with_temp_and_topp(model_logits, top_p, t):
    shares = F.softmax(model_logits.double() / t, -1)
    result = torch.zeros_like(shares)
    for place in np.ndindex(*shares.shape[:-1]):
        reached = 0.0
        for token in shares[place].argsort(descending=True).tolist():
            result[place][token] = shares[place][token]
            reached += float(shares[place][token])
            if reached >= top_p:
                break
        result[place] /= reached
    return result.float()
""",
        """
@torch.no_grad()
def get_dist_after_with_temp_and_topp(model_logits, top_p, t):
    shares = torch.softmax(model_logits / t, dim=-1)
    size = shares.shape[-1]
    earlier = torch.ones(size, size, dtype=torch.bool).tril(-1)  # of equally likely tokens the first counts first
    others, own = shares[..., None, :], shares[..., :, None]
    before = ((others > own) | ((others == own) & earlier)).to(shares.dtype).mul(others).sum(-1)
    kept = (before < top_p) | (before == 0)
    shares = torch.where(kept, shares, 0.0)
    return shares / shares.sum(-1, keepdim=True)
""",
    ],
    "accuracy": [
        """
@torch.no_grad()
def calc_per_token_acc(model, data_loader):
    model.eval()
    right, count = 0, 0
    for x, y in data_loader:
        right = right + (model(x).argmax(-1) == y).sum(0)
        count += len(x)
    return (right / count).numpy()
""",
        """
@torch.no_grad()
def calc_per_token_acc(model, data_loader):
    model.eval()
    pairs = [(model(x).max(-1).indices.numpy(), y.numpy()) for x, y in data_loader]
    return np.mean(np.concatenate([guesses for guesses, _ in pairs]) == np.concatenate([y for _, y in pairs]), axis=0)
""",
    ],
}
