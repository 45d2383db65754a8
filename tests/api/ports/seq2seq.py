"""A translator of reversed words: packed LSTMs, attention, teacher forcing, clipping, a plateau
schedule, checkpoints. As a PyTorch program says it."""

import math
import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import optim
from torch.nn.utils import clip_grad_norm_
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PAD, SOS, EOS, WORDS = 0, 1, 2, 12


class Pairs(Dataset):
    def __init__(self, count, seed):
        draw = random.Random(seed)
        self.lines = [
            [draw.randint(3, WORDS - 1) for _ in range(draw.randint(2, 6))] for _ in range(count)
        ]

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, i):
        line = self.lines[i]
        return torch.tensor(line, dtype=torch.long), torch.LongTensor([*line[::-1], EOS])


def collate(batch):
    batch.sort(key=lambda pair: len(pair[0]), reverse=True)
    src, trg = zip(*batch)
    lengths = torch.LongTensor([len(s) for s in src])
    return (
        pad_sequence(src, batch_first=True, padding_value=PAD),
        lengths,
        pad_sequence(trg, batch_first=True, padding_value=PAD),
    )


class Encoder(nn.Module):
    def __init__(self, size, hidden):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, size, padding_idx=PAD)
        self.rnn = nn.LSTM(size, hidden, 2, batch_first=True, bidirectional=True)
        self.state = nn.Linear(2 * hidden, hidden)
        self.cell = nn.Linear(2 * hidden, hidden)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(self.embedding(x), lengths.cpu(), batch_first=True)
        self.rnn.flatten_parameters()
        out, (h, c) = self.rnn(packed)
        out, _ = pad_packed_sequence(out, batch_first=True)
        h = torch.tanh(self.state(torch.cat((h[-2, :, :], h[-1, :, :]), dim=1)))
        c = torch.tanh(self.cell(torch.cat([c[-2], c[-1]], 1)))
        return out, (h.unsqueeze(0), c.unsqueeze(0))


class Attention(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.attn = nn.Linear(hidden * 3, hidden)
        self.v = nn.Parameter(torch.rand(hidden))
        bound = 1.0 / math.sqrt(self.v.size(0))
        nn.init.uniform_(self.v.data, -bound, bound)

    def forward(self, h, enc, mask):
        count = enc.size(1)
        h = h[-1].unsqueeze(1).repeat(1, count, 1)
        energy = torch.tanh(self.attn(torch.cat([h, enc], 2))).transpose(1, 2)
        v = self.v.repeat(enc.shape[0], 1).unsqueeze(1)
        scores = torch.bmm(v, energy).squeeze(1)
        return F.softmax(scores.masked_fill(mask == 0, -1e10), dim=1)


class Decoder(nn.Module):
    def __init__(self, size, hidden):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, size)
        self.attention = Attention(hidden)
        self.rnn = nn.LSTM(size + 2 * hidden, hidden, batch_first=True)
        self.out = nn.Linear(hidden, WORDS)

    def forward(self, y, state, enc, mask):
        e = self.embedding(y.unsqueeze(1))
        context = torch.bmm(self.attention(state[0], enc, mask).unsqueeze(1), enc)
        o, state = self.rnn(torch.cat((e, context), dim=2), state)
        return self.out(o.squeeze(1)), state


class Seq2Seq(nn.Module):
    def __init__(self, size=8, hidden=12):
        super().__init__()
        self.encoder, self.decoder = Encoder(size, hidden), Decoder(size, hidden)

    def forward(self, src, lengths, trg, draw, teacher_forcing_ratio=0.5):
        rows, count = trg.shape
        outputs = torch.zeros(rows, count, WORDS).to(src.device)
        outputs = outputs.type_as(next(self.parameters()))
        enc, state = self.encoder(src, lengths)
        mask = src != PAD
        y = torch.full((rows,), SOS, dtype=torch.long, device=src.device)
        for t in range(count):
            scores, state = self.decoder(y, state, enc, mask)
            outputs[:, t] = scores
            teacher_force = draw.random() < teacher_forcing_ratio
            y = trg[:, t] if teacher_force else scores.argmax(1)
        return outputs


def init_weights(m):
    for name, param in m.named_parameters():
        if "weight" in name:
            nn.init.normal_(param.data, mean=0, std=0.08)
        else:
            nn.init.constant_(param.data, 0)


def train(model, path, epochs=2):
    model.to(device)
    optimizer = optim.Adam(model.parameters(), lr=3e-3)
    scheduler = optim.lr_scheduler.ReduceLROnPlateau(optimizer, "min", patience=0, factor=0.5)
    criterion = nn.CrossEntropyLoss(ignore_index=PAD)
    loader = DataLoader(Pairs(24, 0), batch_size=8, collate_fn=collate)
    held = DataLoader(Pairs(8, 1), batch_size=8, collate_fn=collate)
    draw, losses, best = random.Random(2), [], float("inf")
    for epoch in range(epochs):
        model.train()
        for src, lengths, trg in loader:
            src, trg = src.to(device), trg.to(device)
            optimizer.zero_grad()
            out = model(src, lengths, trg, draw)
            loss = criterion(out.view(-1, out.shape[-1]), trg.view(-1))
            loss.backward()
            clip_grad_norm_(model.parameters(), 1)
            optimizer.step()
            losses.append(loss.item())
        model.eval()
        with torch.no_grad():
            for src, lengths, trg in held:
                out = model(src.to(device), lengths, trg.to(device), draw, 0)
                score = criterion(out.reshape(-1, out.size(-1)), trg.flatten()).item()
        scheduler.step(score)
        losses.append(score)
        if score < best:
            best = score
            torch.save(
                {"epoch": epoch, "model": model.state_dict(), "opt": optimizer.state_dict()}, path
            )
    checkpoint = torch.load(path, map_location=device)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["opt"])
    return [*losses, best, checkpoint["epoch"], optimizer.param_groups[0]["lr"]]
