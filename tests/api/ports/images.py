"""A residual network on images with all that people put around one: groups, one-cycle rates,
gradient accumulation, loss scaling, clipping, an average of weights, accuracies, checkpoints."""

import os
from collections import OrderedDict

import numpy as np
import torch
import torch.backends.cudnn as cudnn
import torch.nn as nn
import torch.nn.functional as F
from torch.cuda.amp import GradScaler, autocast
from torch.optim.lr_scheduler import OneCycleLR
from torch.optim.swa_utils import AveragedModel, update_bn
from torch.utils.data import DataLoader, TensorDataset, random_split


class AverageMeter(object):
    def __init__(self, name, fmt=":f"):
        self.name, self.fmt = name, fmt
        self.reset()

    def reset(self):
        self.val = self.avg = self.sum = self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count

    def __str__(self):
        return ("{name} {val" + self.fmt + "} ({avg" + self.fmt + "})").format(**self.__dict__)


def accuracy(output, target, topk=(1,)):
    with torch.no_grad():
        maxk = max(topk)
        batch_size = target.size(0)
        _, pred = output.topk(maxk, 1, True, True)
        pred = pred.t()
        correct = pred.eq(target.view(1, -1).expand_as(pred))
        res = []
        for k in topk:
            correct_k = correct[:k].reshape(-1).float().sum(0, keepdim=True)
            res.append(correct_k.mul_(100.0 / batch_size))
        return res


class BasicBlock(nn.Module):
    expansion = 1

    def __init__(self, in_planes, planes, stride=1):
        super(BasicBlock, self).__init__()
        self.conv1 = nn.Conv2d(in_planes, planes, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, kernel_size=3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.shortcut = nn.Sequential()
        if stride != 1 or in_planes != self.expansion * planes:
            self.shortcut = nn.Sequential(
                OrderedDict(
                    [
                        ("conv", nn.Conv2d(in_planes, planes, 1, stride=stride, bias=False)),
                        ("bn", nn.BatchNorm2d(planes)),
                    ]
                )
            )

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return F.relu(out)


class ResNet(nn.Module):
    def __init__(self, classes=6):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(inplace=True)
        )
        self.layers = nn.Sequential(*[BasicBlock(4, 4), BasicBlock(4, 8, 2)])
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(8 * BasicBlock.expansion, classes)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(m, (nn.BatchNorm2d, nn.GroupNorm)):
                nn.init.constant_(m.weight, 1)
                nn.init.constant_(m.bias, 0)

    def forward(self, x):
        x = self.avgpool(self.layers(self.stem(x)))
        return self.fc(torch.flatten(x, 1))


def train(net, path, epochs=2, accum=2):
    torch.manual_seed(1)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(1)
    cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    rng = np.random.RandomState(0)
    x = torch.from_numpy(rng.randint(0, 256, (48, 3, 8, 8)).astype(np.uint8)).double().div_(255)
    mean = torch.tensor([0.49, 0.48, 0.45], dtype=torch.float64).view(1, 3, 1, 1)
    x.sub_(mean)
    y = torch.from_numpy(rng.randint(0, 6, 48))
    full = TensorDataset(x, y)
    train_set, val_set = (
        torch.utils.data.Subset(full, range(40)),
        torch.utils.data.Subset(full, range(40, 48)),
    )
    assert [
        len(s) for s in random_split(full, [40, 8], generator=torch.Generator().manual_seed(4))
    ] == [40, 8]
    loader = DataLoader(train_set, batch_size=8, num_workers=0, pin_memory=False, drop_last=True)
    val_loader = DataLoader(val_set, batch_size=8, shuffle=False)
    net = net.to(device, memory_format=torch.channels_last)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1).to(device)
    decay, no_decay = [], []
    for name, p in net.named_parameters():
        (no_decay if p.ndim == 1 or name.endswith(".bias") else decay).append(p)
    optimizer = torch.optim.SGD(
        [{"params": decay, "weight_decay": 5e-4}, {"params": no_decay, "weight_decay": 0.0}],
        lr=0.1,
        momentum=0.9,
        nesterov=True,
    )
    scheduler = OneCycleLR(
        optimizer, max_lr=0.1, epochs=epochs, steps_per_epoch=len(loader) // accum, pct_start=0.3
    )
    scaler = GradScaler(enabled=False)
    ema = AveragedModel(net, avg_fn=lambda a, m, n: 0.9 * a + 0.1 * m)
    seen = []
    for epoch in range(epochs):
        losses, top1 = AverageMeter("Loss", ":.4e"), AverageMeter("Acc@1", ":6.2f")
        net.train()
        optimizer.zero_grad(set_to_none=True)
        for i, (images, target) in enumerate(loader):
            images = images.to(device, non_blocking=True, memory_format=torch.channels_last)
            target = target.to(device, non_blocking=True)
            with autocast(enabled=False):
                output = net(images)
                loss = criterion(output, target) / accum
            scaler.scale(loss).backward()
            if (i + 1) % accum == 0:
                scaler.unscale_(optimizer)
                norm = torch.nn.utils.clip_grad_norm_(net.parameters(), max_norm=5.0)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad(set_to_none=True)
                scheduler.step()
                ema.update_parameters(net)
                seen += [norm.item(), scheduler.get_last_lr()[0]]
            acc1, acc5 = accuracy(output, target, topk=(1, 5))
            losses.update(loss.item() * accum, images.size(0))
            top1.update(acc1[0], images.size(0))
        net.eval()
        confusion = torch.zeros(6, 6, dtype=torch.int64)
        with torch.inference_mode():
            for images, target in val_loader:
                output = net(images.to(device))
                _, predicted = torch.max(output.data, 1)
                for t, p in zip(target.view(-1), predicted.view(-1)):
                    confusion[t.long(), p.long()] += 1
        torch.save(
            {
                "epoch": epoch + 1,
                "state_dict": net.state_dict(),
                "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict(),
                "scaler": scaler.state_dict(),
                "rng": torch.get_rng_state(),
            },
            path,
        )
        seen += [losses.avg, float(top1.avg), *confusion.diag().tolist()]
        assert "Loss" in str(losses)
    update_bn(loader, ema, device=device)
    checkpoint = torch.load(path, map_location=device) if os.path.isfile(path) else None
    net.load_state_dict(checkpoint["state_dict"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    scheduler.load_state_dict(checkpoint["scheduler"])
    scaler.load_state_dict(checkpoint["scaler"])
    torch.set_rng_state(checkpoint["rng"])
    ema.eval()
    with torch.no_grad():
        seen += ema(x[:2].to(device)).flatten().tolist()
    return seen
