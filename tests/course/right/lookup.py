"""Right answers of the lookup lesson that are written differently."""

from functools import partial

from course.checked import filled

with_body = partial(filled, "lookup")

RIGHT: dict[str, list[str]] = {
    "dataset": [
        """
class LookupDataset(Dataset):
    def __init__(self, data):
        self.rows = [(row["enc_input"], row["dec_target"]) for row in data]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, idx):
        source, target = self.rows[idx]
        shifted = target.roll(1)
        shifted[0] = SOS
        return source, shifted, target
""",
        """
class LookupDataset(list):
    def __getitem__(self, idx):
        example = super().__getitem__(idx)
        target = example["dec_target"].tolist()
        return [example["enc_input"], torch.tensor([SOS] + target[:-1]), torch.tensor(target)]
""",
    ],
    "collate": [
        """
def collate_fn(batch):
    padded = []
    for rows in zip(*batch):
        longest = max(len(row) for row in rows)
        table = torch.full((len(rows), longest), PAD)
        for number, row in enumerate(rows):
            table[number, : len(row)] = row
        padded.append(table)
    return padded[0], padded[1], padded[2], padded[0].eq(PAD), padded[1].eq(PAD)
""",
        """
def collate_fn(batch):
    sources, inputs, targets = (list(rows) for rows in zip(*batch))
    enc, dec, out = [nn.functional.pad(pad_sequence(rows).T, (0, 0)) for rows in (sources, inputs, targets)]
    return [enc, dec, out, ~enc.bool(), torch.logical_not(dec)]
""",
    ],
    "attention": [
        """
def scaled_dot_product_attention(q, k, v, mask=None):
    scores = torch.einsum("...qd,...kd->...qk", q, k) / math.sqrt(k.shape[-1])
    if mask is not None:
        scores = torch.where(mask, scores, torch.full_like(scores, -1e30))
    powers = torch.exp(scores - scores.amax(-1, keepdim=True))
    weights = powers / powers.sum(dim=-1, keepdim=True)
    return torch.einsum("...qk,...kd->...qd", weights, v), weights
""",
        """
def scaled_dot_product_attention(q, k, v, mask=None):
    bias = 0 if mask is None else torch.zeros(mask.shape, dtype=q.dtype).masked_fill(mask.logical_not(), -torch.inf)
    weights = nn.functional.softmax((q / q.size(-1) ** 0.25) @ (k / q.size(-1) ** 0.25).mT + bias, dim=-1)
    return torch.matmul(weights, v), weights
""",
    ],
    "heads": [
        """
class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.width = d_model // num_heads
        self.query, self.key = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        self.value, self.output = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)

    def forward(self, x, source, mask=None):
        q, k, v = (layer(each).split(self.width, dim=-1) for layer, each in
                   ((self.query, x), (self.key, source), (self.value, source)))
        if mask is not None and mask.dim() == 4:
            mask = mask[:, 0]
        found = [scaled_dot_product_attention(*head, mask) for head in zip(q, k, v)]
        return self.output(torch.cat([each for each, _ in found], -1)), torch.stack([each for _, each in found], 1)
""",
        """
class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.query, self.key = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        self.value, self.output = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)

    def split(self, x):
        batch, length, width = x.shape
        return x.view(batch, length, self.num_heads, width // self.num_heads).permute(0, 2, 1, 3)

    def forward(self, x, source, mask=None):
        q, k, v = self.split(self.query(x)), self.split(self.key(source)), self.split(self.value(source))
        scores = torch.matmul(q, k.transpose(2, 3)) * q.shape[-1] ** -0.5
        if mask is not None:
            scores = scores + torch.where(mask, 0.0, -torch.inf)
        weights = scores.softmax(dim=3)
        return self.output((weights @ v).permute(0, 2, 1, 3).reshape(x.shape)), weights
""",
    ],
    "feed_forward": [
        with_body(
            "feed_forward", "        return self.down(self.dropout(self.up(x).clamp(min=0)))"
        ),
        """
class PositionWiseFeedForward(nn.Module):
    def __init__(self, d_model, d_ff, dropout=0.1):
        super().__init__()
        self.up, self.down = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
        self.rate = dropout

    def forward(self, x):
        inside = x @ self.up.weight.T + self.up.bias
        inside = nn.functional.dropout(inside * (inside > 0), self.rate, self.training)
        return nn.functional.linear(inside, self.down.weight, self.down.bias)
""",
    ],
    "encoder_layer": [
        with_body(
            "encoder_layer",
            """
        for part, norm in ((lambda y: self.attention(y, y, mask)[0], self.attention_norm), (self.ffn, self.ffn_norm)):
            x = norm(self.dropout(part(x)) + x)
        return x
""",
        ),
        with_body(
            "encoder_layer",
            """
        x = x + self.dropout(self.attention(source=x, x=x, mask=mask)[0])
        mean, spread = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
        x = (x - mean) / (spread + self.attention_norm.eps).sqrt()
        x = x * self.attention_norm.weight + self.attention_norm.bias
        y = self.dropout(self.ffn(x))
        return self.ffn_norm(y + x)
""",
        ),
    ],
    "decoder_layer": [
        with_body(
            "decoder_layer",
            """
        positions = torch.arange(x.shape[1])
        seen = positions[:, None] >= positions
        if mask is not None:
            seen = torch.logical_and(seen, mask)
        x = self.self_attention_norm(x + self.dropout(self.self_attention(x, x, seen)[0]))
        x = self.cross_attention_norm(x + self.dropout(self.cross_attention(x, memory, memory_mask)[0]))
        return self.ffn_norm(x + self.dropout(self.ffn(x)))
""",
        ),
        with_body(
            "decoder_layer",
            """
        rows = []
        for last in range(1, x.shape[1] + 1):  # every position by itself
            own = x[:, last - 1 : last]
            part = None if mask is None else mask[..., :last]
            rows.append(self.self_attention(own, x[:, :last], part)[0])
        h = self.self_attention_norm(x + self.dropout(torch.cat(rows, 1)))
        h = self.cross_attention_norm(h + self.dropout(self.cross_attention(h, memory, memory_mask)[0]))
        return self.ffn_norm(h + self.dropout(self.ffn(h)))
""",
        ),
    ],
    "encoder": [
        with_body(
            "encoder",
            """
        real = src_padding_mask.logical_not().unsqueeze(1).unsqueeze(2)
        x = self.embedding.weight[enc_input].mul(math.sqrt(self.embedding.weight.shape[1]))
        x = self.dropout(x)
        for layer in self.layers:
            x = layer(x, mask=real)
        return x
""",
        ),
        with_body(
            "encoder",
            """
        chosen = nn.functional.one_hot(enc_input, self.embedding.num_embeddings).to(self.embedding.weight.dtype)
        x = self.dropout(chosen @ self.embedding.weight * self.embedding.embedding_dim**0.5)
        real = (~src_padding_mask)[:, None, None].expand(-1, 1, enc_input.shape[1], -1)
        for number in range(len(self.layers)):
            x = self.layers[number](x, real)
        return x
""",
        ),
    ],
    "positions": [
        """
def sinusoids(length, d_model):
    table = torch.empty(length, d_model)
    for p in range(length):
        for i in range(d_model // 2):
            angle = p / 10000 ** (2 * i / d_model)
            table[p, 2 * i], table[p, 2 * i + 1] = math.sin(angle), math.cos(angle)
    return table
""",
        """
def sinusoids(length, d_model):
    exponents = torch.arange(0, d_model, 2, dtype=torch.float64) / d_model
    angles = torch.outer(torch.arange(length, dtype=torch.float64), torch.exp(-math.log(10000) * exponents))
    return torch.stack([angles.sin(), angles.cos()], dim=2).reshape(length, d_model).float()
""",
    ],
    "decoder": [
        with_body(
            "decoder",
            """
        own, read = (mask.logical_not()[:, None, None] for mask in (tgt_padding_mask, src_padding_mask))
        scale = math.sqrt(enc_output.shape[-1])
        x = self.positions.narrow(0, 0, dec_input.size(1)) + scale * self.embedding(dec_input)
        x = self.dropout(x)
        for layer in self.layers:
            x = layer(x, enc_output, mask=own, memory_mask=read)
        return x
""",
        ),
        with_body(
            "decoder",
            """
        x = self.embedding(dec_input) * self.embedding.embedding_dim**0.5
        x = self.dropout(x + sinusoids(dec_input.shape[1], self.embedding.embedding_dim))
        for layer in self.layers:
            x = layer(x, enc_output, ~tgt_padding_mask[:, None, None], ~src_padding_mask[:, None, None])
        return x
""",
        ),
    ],
    "model": [
        with_body(
            "model",
            """
        source, target = (
            tokens.eq(PAD) if mask is None else mask
            for tokens, mask in ((enc_input, src_padding_mask), (dec_input, tgt_padding_mask))
        )
        x = self.decoder(dec_input, self.encoder(enc_input, source), source, target)
        return x @ self.projection.weight.T + self.projection.bias
""",
        ),
        with_body(
            "model",
            """
        if src_padding_mask is None:
            src_padding_mask = ~enc_input.bool()
        tgt_padding_mask = ~dec_input.bool() if tgt_padding_mask is None else tgt_padding_mask
        memory = self.encoder(src_padding_mask=src_padding_mask, enc_input=enc_input)
        found = self.decoder(
            dec_input, enc_output=memory, tgt_padding_mask=tgt_padding_mask, src_padding_mask=src_padding_mask
        )
        return self.projection(found)
""",
        ),
    ],
    "training": [
        """
def train_model(model, train_loader, val_loader, num_epochs, learning_rate):
    optimizer = torch.optim.Adam(model.parameters(), learning_rate)
    history = {"train_loss": [], "val_loss": []}

    def loss_of(batch):
        enc_input, dec_input, target, *masks = batch
        logits = model(enc_input, dec_input, *masks)
        return nn.functional.cross_entropy(logits.mT, target, ignore_index=PAD)

    best = {}
    for epoch in range(num_epochs):
        total = 0.0
        model.train()
        for batch in train_loader:
            model.zero_grad()
            loss = loss_of(batch)
            loss.backward()
            optimizer.step()
            total += float(loss)
        model.train(False)
        with torch.inference_mode():
            held_out = torch.stack([loss_of(batch) for batch in val_loader]).mean().item()
        if not history["val_loss"] or held_out < min(history["val_loss"]):
            best = {name: weight.detach().clone() for name, weight in model.state_dict().items()}
        history["train_loss"].append(total / len(train_loader))
        history["val_loss"].append(held_out)
    model.load_state_dict(best)
    return history
""",
        """
def train_model(model, train_loader, val_loader, num_epochs, learning_rate):
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0)
    train_losses, val_losses, saved = [], [], []

    def loss_of(enc_input, dec_input, target, src, tgt):
        shares = model(enc_input, dec_input, src, tgt).log_softmax(-1)
        real = target != PAD
        return -shares.gather(2, target[..., None])[..., 0][real].mean()

    for _ in range(num_epochs):
        losses = []
        model.train()
        for batch in train_loader:
            losses.append(loss_of(*batch))
            optimizer.zero_grad()
            losses[-1].backward()
            optimizer.step()
        train_losses.append(torch.stack(losses).mean().item())
        model.eval()
        with torch.no_grad():
            val_losses.append(np.mean([loss_of(*batch).item() for batch in val_loader]))
        saved.append(copy.deepcopy(model.state_dict()))
    model.load_state_dict(saved[int(np.argmin(val_losses))])
    return {"train_loss": train_losses, "val_loss": val_losses}
""",
    ],
    "decode": [
        """
def greedy_decode(model, enc_input, max_len):
    rows = [[] for _ in enc_input]
    with torch.no_grad():
        for row, source in zip(rows, enc_input):
            while len(row) < max_len and EOS not in row:
                logits = model(source[None], torch.tensor([[SOS, *row]]))
                row.append(logits[0, -1].argmax().item())
    longest = max(map(len, rows))
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])
""",
        """
@torch.no_grad()
def greedy_decode(model, enc_input, max_len):
    model.eval()
    tokens = enc_input.new_full((enc_input.shape[0], 1), SOS)
    while tokens.shape[1] <= max_len and not (tokens == EOS).any(1).all():
        newest = model(enc_input, tokens)[:, -1, :].max(dim=-1).indices
        newest = torch.where((tokens == EOS).any(1), torch.full_like(newest, PAD), newest)
        tokens = torch.hstack([tokens, newest.unsqueeze(1)])
    return tokens[:, 1:]
""",
    ],
    "scrambling": [
        """
def scrambling_test(predict, contexts):
    largest, changed = torch.tensor(0.0), 0
    for context in contexts:
        before = predict(context[None])[0]
        for order in permutations(range(len(context))):
            after = predict(context[list(order)][None])[0]
            largest = torch.maximum(largest, (after - before).abs().max())
            changed += int((after.argmax(-1) != before.argmax(-1)).sum())
    return largest, changed
""",
        """
def scrambling_test(predict, contexts):
    changes, tokens = [], []
    for context in contexts.tolist():
        logits = predict(torch.tensor(list(permutations(context))))
        first = predict(torch.tensor([context]))
        changes += [(logits - first).abs().flatten().max().item()]
        tokens += (logits.argmax(-1) != first.argmax(-1)).flatten().tolist()
    return [max(changes), sum(tokens)]
""",
    ],
    "hook": [
        """
def cross_attention_weights(model, enc_input, dec_input):
    kept = {}

    def keep(module, inputs, output):
        kept["weights"] = output[1].detach()

    with torch.no_grad():
        handle = list(model.decoder.layers)[-1].cross_attention.register_forward_hook(keep)
        model(enc_input, dec_input)
        handle.remove()
    return kept["weights"]
""",
        """
def cross_attention_weights(model, enc_input, dec_input):
    attention, found = model.decoder.layers[-1].cross_attention, []
    handle = attention.register_forward_pre_hook(lambda module, inputs: found.append(inputs))
    with torch.no_grad():
        model(enc_input, dec_input)
        handle.remove()
        return attention(*found[0])[1]
""",
    ],
    "bag": [
        """
def same_bag():
    contexts = [{key: value for key, value in zip(KEYS, order)} for order in sorted(permutations(VALUES))][::-1]
    return {"share": 1 / len(KEYS), "contexts": contexts}
""",
        """
def same_bag():
    def assign(keys, values):
        if not keys:
            return [{}]
        return [
            {**rest, keys[0]: value} for value in values for rest in assign(keys[1:], [v for v in values if v != value])
        ]

    return {"contexts": assign(KEYS, VALUES), "share": math.factorial(len(KEYS) - 1) / math.factorial(len(KEYS))}
""",
    ],
}
