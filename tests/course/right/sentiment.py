"""Right answers of the sentiment lesson, written differently: cells in place of the solutions'."""

from functools import partial

from course.checked import filled

with_body = partial(filled, "sentiment")

LINEAR = """
        for name in ("W_q", "W_k", "W_v", "W_o"):
            setattr(self, name, nn.Linear(d_model, d_model))
"""
SPECIAL = "PAD, UNK, CLS = 0, 1, 2\n"

RIGHT = {
    "vocabulary": [
        SPECIAL
        + """
def build_vocabulary(texts, size):
    counts = Counter(word for text in texts for word in split_words(text))
    words = sorted(sorted(counts), key=counts.get, reverse=True)[: size - 3]
    return {word: index for index, word in enumerate(["<PAD>", "<UNK>", "<CLS>", *words])}
""",
        SPECIAL
        + """
def build_vocabulary(texts, size):
    vocabulary, counts = {"<PAD>": PAD, "<UNK>": UNK, "<CLS>": CLS}, {}
    for word in split_words(" ".join(texts)):
        counts[word] = counts.get(word, 0) + 1
    while counts and len(vocabulary) < size:
        most = max(counts.values())
        word = min(each for each, count in counts.items() if count == most)
        vocabulary[word] = len(vocabulary)
        del counts[word]
    return vocabulary
""",
    ],
    "encode": [
        """
def encode(text, vocabulary, max_length):
    row = [PAD] * max_length
    row[0] = CLS
    for place, word in enumerate(split_words(text), start=1):
        if place < max_length:
            row[place] = vocabulary[word] if word in vocabulary else UNK
    return row
""",
        """
def encode(text, vocabulary, max_length):
    words = ["<CLS>", *split_words(text), *["<PAD>"] * max_length][:max_length]
    return [vocabulary.get(word, vocabulary["<UNK>"]) for word in words]
""",
    ],
    "positions": [
        """
def sinusoidal_positions(max_length, d_model):
    position = torch.arange(max_length).float().unsqueeze(1)
    frequency = torch.pow(10000.0, -torch.arange(0, d_model, 2) / d_model)
    return torch.stack([(position * frequency).sin(), (position * frequency).cos()], dim=-1).flatten(1)
""",
        """
def sinusoidal_positions(max_length, d_model):
    table = torch.empty(max_length, d_model)
    for position in range(max_length):
        for pair in range(d_model // 2):
            angle = position / 10000 ** (2 * pair / d_model)
            table[position, 2 * pair] = math.sin(angle)
            table[position, 2 * pair + 1] = math.cos(angle)
    return table
""",
    ],
    "embeddings": [
        with_body(
            "embeddings",
            "        return self.d_model**0.5 * F.embedding(ids, self.embedding.weight)",
            "        return self.dropout(self.token_embedding(input_ids) + self.pe[None, : "
            "input_ids.size(1), :])",
        ),
        with_body(
            "embeddings",
            "        return self.embedding.weight[ids] * self.embedding.embedding_dim**0.5",
            """
        places = torch.arange(input_ids.shape[-1])
        return self.dropout(self.pe[places] + self.token_embedding(input_ids))
""",
        ),
    ],
    "attention": [
        """
def scaled_dot_product_attention(Q, K, V, mask=None, dropout=None):
    scores = torch.einsum("...qd,...kd->...qk", Q * Q.size(-1) ** -0.5, K)
    if mask is not None:
        scores = torch.where(mask, scores, -1e9)
    weights = torch.softmax(scores, dim=-1)
    kept = weights if dropout is None else dropout(weights)
    return torch.matmul(kept, V), weights
""",
        """
def scaled_dot_product_attention(Q, K, V, mask=None, dropout=None):
    scores = torch.matmul(Q, K.mT) / Q.shape[-1] ** 0.5
    shares = (scores - scores.amax(-1, keepdim=True)).exp()
    if mask is not None:
        scores = scores.masked_fill(mask == 0, torch.finfo(scores.dtype).min)
        shares = (scores - scores.amax(-1, keepdim=True)).exp() * mask
    weights = shares / shares.sum(-1, keepdim=True)
    return (dropout(weights) if dropout else weights) @ V, weights
""",
    ],
    "multi-head": [
        with_body(
            "multi-head",
            LINEAR,
            """
        batch, length, width = x.shape
        Q = self.W_q(x).view(batch, length, self.num_heads, self.d_k).transpose(1, 2)
        K = self.W_k(x).view(batch, length, self.num_heads, self.d_k).transpose(1, 2)
        V = self.W_v(x).view(batch, length, self.num_heads, self.d_k).transpose(1, 2)
        output, weights = scaled_dot_product_attention(Q, K, V, mask, dropout=self.dropout)
        return self.W_o(output.transpose(1, 2).contiguous().view(batch, length, width)), weights
""",
        ),
        with_body(
            "multi-head",
            LINEAR,
            """
        outputs, weights = [], []
        for head in range(self.num_heads):
            part = slice(head * self.d_k, (head + 1) * self.d_k)
            Q, K, V = (layer(x)[..., part] for layer in (self.W_q, self.W_k, self.W_v))
            allowed = None if mask is None else mask.squeeze(1)
            output, weight = scaled_dot_product_attention(Q, K, V, allowed, self.dropout)
            outputs.append(output)
            weights.append(weight)
        return self.W_o(torch.cat(outputs, dim=-1)), torch.stack(weights, dim=1)
""",
        ),
    ],
    "layer-norm": [
        """
class LayerNorm(nn.Module):
    def __init__(self, features, eps=1e-6):
        super().__init__()
        self.gamma, self.beta = nn.Parameter(torch.ones(features)), nn.Parameter(torch.zeros(features))
        self.eps = eps

    def forward(self, x):
        centred = x - x.mean(dim=-1, keepdim=True)
        std = (centred.square().sum(-1, keepdim=True) / (x.shape[-1] - 1)).sqrt()
        return centred / (std + self.eps) * self.gamma + self.beta
""",
        """
class LayerNorm(nn.Module):
    def __init__(self, features, eps=1e-6):
        super().__init__()
        self.gamma, self.beta, self.eps = nn.Parameter(torch.ones(features)), nn.Parameter(torch.zeros(features)), eps

    def forward(self, x):
        std, mean = torch.std_mean(x, dim=-1, keepdim=True)
        return torch.addcmul(self.beta, self.gamma, (x - mean) / (std + self.eps))
""",
    ],
    "feed-forward": [
        """
class FeedForward(nn.Module):
    def __init__(self, d_model, d_ff, dropout=0.1):
        super().__init__()
        self.linear1, self.linear2 = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return self.linear2(self.dropout(self.linear1(x).clamp(min=0)))
""",
        """
class FeedForward(nn.Module):
    def __init__(self, d_model, d_ff, dropout=0.1):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.linear1 = nn.Linear(d_model, d_ff, bias=True)
        self.linear2 = nn.Linear(d_ff, d_model, bias=True)

    def forward(self, x):
        inside = x @ self.linear1.weight.T + self.linear1.bias
        inside = self.dropout(torch.where(inside > 0, inside, 0.0))
        return inside @ self.linear2.weight.T + self.linear2.bias
""",
    ],
    "block": [
        """
class TransformerBlock(nn.Module):
    def __init__(self, d_model, num_heads, d_ff, dropout=0.1):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.feed_forward = FeedForward(d_model, d_ff, dropout)
        self.attention = MultiHeadAttention(d_model, num_heads, dropout)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask=None):
        attn_output, attention_weights = self.attention(x, mask=mask)
        x1 = self.norm1(self.dropout(attn_output) + x)
        x2 = self.norm2(self.dropout(self.feed_forward(x1)) + x1)
        return x2, attention_weights
""",
        """
class TransformerBlock(nn.Module):
    def __init__(self, d_model, num_heads, d_ff, dropout=0.1):
        super().__init__()
        self.attention = MultiHeadAttention(d_model, num_heads, dropout)
        self.norm1 = nn.LayerNorm(d_model)
        self.feed_forward = FeedForward(d_model, d_ff, dropout)
        self.norm2 = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask=None):
        found = []

        def attend(each):
            output, weights = self.attention(each, mask)
            found.append(weights)
            return output

        for part, norm in ((attend, self.norm1), (self.feed_forward, self.norm2)):
            x = norm(x + self.dropout(part(x)))
        return x, found[0]
""",
    ],
    "pooling": [
        """
def mean_over_real(x, real):
    shares = real / real.sum(dim=1, keepdim=True).clamp(min=1)
    return torch.einsum("bp,bpw->bw", shares.to(x.dtype), x)
""",
        """
def mean_over_real(x, real):
    kept = x.masked_fill(~real.unsqueeze(-1), 0.0)
    lengths = real.sum(1)
    lengths = torch.where(lengths == 0, 1, lengths)
    return kept.sum(dim=1) / lengths[:, None]
""",
    ],
    "classifier": [
        with_body(
            "classifier",
            """
        x = self.embeddings(input_ids)
        mask = real.unsqueeze(1).unsqueeze(2)
        attention_weights = []
        for block in self.transformer_blocks:
            x, weights = block(x, mask)
            attention_weights += [weights]
        return self.classifier(self.dropout(mean_over_real(self.ln_f(x), real))), attention_weights
""",
        ),
        with_body(
            "classifier",
            """
        x = self.embeddings(input_ids)
        mask = (real[:, None, :] & torch.ones_like(real)[:, :, None])[:, None]
        outputs = []
        for block in self.transformer_blocks:
            outputs.append(block(x, mask))
            x = outputs[-1][0]
        x = self.ln_f(x)
        pooled = torch.stack([rows[chosen].mean(0) for rows, chosen in zip(x, real)])
        return self.classifier(self.dropout(pooled)), [weights for _, weights in outputs]
""",
        ),
    ],
    "training-step": [
        """
def training_step(model, optimizer, input_ids, labels):
    model.train()
    loss = nn.CrossEntropyLoss()(model(input_ids)[0], labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return float(loss)
""",
        """
def training_step(model, optimizer, input_ids, labels):
    model.train()
    logits = model(input_ids)[0]
    loss = F.nll_loss(logits.log_softmax(-1), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.tolist()
""",
    ],
    "attention-received": [
        """
def attention_received(weights, real):
    queries = real.to(weights.dtype)
    total = torch.einsum("bhqk,bq->bk", weights, queries)
    return total / (weights.shape[1] * queries.sum(1, keepdim=True))
""",
        """
def attention_received(weights, real):
    return torch.stack([weights[text][:, real[text]].flatten(0, 1).mean(0) for text in range(len(weights))])
""",
    ],
}
