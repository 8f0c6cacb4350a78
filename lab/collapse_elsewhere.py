#!/usr/bin/python3
"""Measures whether the rank of small vision models collapses while they learn, as it is said to do in transformers.

Trains a residual CNN, a ViT and an MLP-Mixer on generated images of ten shapes, each with AdamW and with Muon, without
and with weight decay. Every few steps it measures, per block, the weights that write into the residual stream,
the stream after the block, and the gradient of the loss with respect to the stream. All three models have a stream of
the same width and the same number of positions, so their numbers compare with each other and with one random matrix.

Run with Debian 12's python3-torch:  /usr/bin/python3 collapse_elsewhere.py --out result.json
"""
import argparse
import hashlib
import json
import math
import os
import sys
import time

with open("/proc/cpuinfo") as cpu_file:
    cpu = cpu_file.read()
if "avx2" in cpu:  # Debian 12's OpenBLAS treats CPUs that are newer than it as a Pentium 4, which halves the speed
    os.environ.setdefault("OPENBLAS_CORETYPE", "SkylakeX" if "avx512vl" in cpu else "Haswell")

import torch
import torch.nn.functional as F
from torch import nn

SIZE, CELL, NOISE = 24, 4, 0.1  # pixels per side, pixels per side of a position's patch, standard deviation
GRID = SIZE // CELL  # positions per side
WIDTH, HIDDEN, HEADS, BLOCKS = 64, 128, 4, 6
TOP_K = max(4, WIDTH // 16)
BATCH, PROBE_IMAGES = 32, 64
LEARNING_RATE = {"adamw": 0.002, "muon": 0.02}  # AdamW's is also that of the parameters that Muon does not update
WARMUP_STEPS, DECAY_FRACTION, FINAL_RATE = 10, 0.4, 0.05  # thinpipe's schedule "wsd"
FULL = {"steps": 800, "points": 20, "train_images": 10000, "test_images": 2000}  # about 8 minutes for 12 runs
QUICK = {"steps": 20, "points": 2, "train_images": 1000, "test_images": 500}


# ---- Images ---------------------------------------------------------------------------------------------------------


def shape_masks(u, v):
    """The ten classes as distances: u, v are coordinates in a shape's own frame; a mask is > 0 inside the shape."""
    radius = (u * u + v * v).sqrt()
    box = 1 - torch.maximum(u.abs(), v.abs())
    disk = 1 - radius
    cross = torch.minimum(box, 0.33 - torch.minimum(u.abs(), v.abs()))
    triangle = torch.minimum(0.5 + v, 0.5 - 0.5 * v - 0.866 * u.abs())
    return torch.stack([
        disk,
        0.28 - (radius - 0.72).abs(),  # ring
        box,
        torch.minimum(box, 0.45 - box),  # frame
        triangle * 1.3,
        cross,
        torch.minimum(box, -torch.minimum(u, v)),  # corner: a square without a quarter
        torch.minimum(disk, v + 0.2),  # half disk
        torch.minimum(disk, 0.3 * torch.sin(7.0 * u)),  # stripes
        torch.minimum(box, 0.3 * torch.sin(4.7 * u) * torch.sin(4.7 * v)),  # checkerboard
    ])


def make_images(count, generator):
    """Returns images (count, 1, SIZE, SIZE) and classes (count). Shapes may be lighter or darker than their ground, so
    every class has about the same mean image, and a linear classifier gets 20% right."""
    def uniform(low, high):
        return low + (high - low) * torch.rand(count, 1, 1, generator=generator)
    axis = torch.linspace(-1, 1, SIZE)
    radius, angle = uniform(0.5, 0.8), uniform(-0.4, 0.4)
    x = (axis.view(1, 1, -1) - uniform(-0.25, 0.25)) / radius
    y = (axis.view(1, -1, 1) - uniform(-0.25, 0.25)) / radius
    u, v = x * angle.cos() + y * angle.sin(), y * angle.cos() - x * angle.sin()
    masks = shape_masks(u, v)  # (classes, count, SIZE, SIZE)
    classes = torch.randint(len(masks), (count,), generator=generator)
    inside = torch.sigmoid(12 * masks[classes, torch.arange(count)])
    contrast = uniform(0.7, 1.2) * torch.where(uniform(0, 1) < 0.5, -1.0, 1.0)
    slope = uniform(-0.2, 0.2) * axis.view(1, 1, -1) + uniform(-0.2, 0.2) * axis.view(1, -1, 1)
    noise = NOISE * torch.randn(count, SIZE, SIZE, generator=generator)
    return (contrast * (inside - 0.5) + slope + noise).unsqueeze(1), classes


# ---- Models: the stream x is (B, P, d), P = GRID * GRID positions ---------------------------------------------------


class PatchStem(nn.Module):
    """One vector per patch of CELL x CELL pixels, plus a learned vector per position if the blocks need to know it."""

    def __init__(self, with_positions):
        super().__init__()
        self.patches = nn.Conv2d(1, WIDTH, CELL, stride=CELL)
        self.positions = nn.Parameter(0.3 * torch.randn(GRID * GRID, WIDTH)) if with_positions else None

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        return x if self.positions is None else x + self.positions


class ConvStem(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(1, WIDTH // 2, 3, stride=2, padding=1), nn.GELU(),
                         nn.Conv2d(WIDTH // 2, WIDTH, 3, stride=2, padding=1), nn.Flatten(2))

    def forward(self, images):
        return super().forward(images).transpose(1, 2)


class ConvBlock(nn.Module):
    """Norm, 3x3 convolution, GELU, 1x1 convolution (`output`) into the stream."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.conv = nn.Conv2d(WIDTH, HIDDEN, 3, padding=1)
        self.output = nn.Linear(HIDDEN, WIDTH)

    def forward(self, x):
        planes = self.norm(x).transpose(1, 2).unflatten(2, (GRID, GRID))  # (B, d, GRID, GRID)
        return x + self.output(F.gelu(self.conv(planes)).flatten(2).transpose(1, 2))


class ChannelMlp(nn.Module):
    """What a ViT block and a Mixer block end with; `output` writes into the stream."""

    def __init__(self):
        super().__init__()
        self.norm, self.input = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, HIDDEN)
        self.output = nn.Linear(HIDDEN, WIDTH)

    def forward(self, x):
        return x + self.output(F.gelu(self.input(self.norm(x))))


class AttentionBlock(nn.Module):
    """Attention, whose projection into the stream is `mixing_output`, and an MLP."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.mixing_output = nn.Linear(WIDTH, WIDTH)
        self.mlp = ChannelMlp()

    def forward(self, x):
        h = self.norm(x)
        q, k, v = (part(h).unflatten(2, (HEADS, -1)).transpose(1, 2) for part in (self.query, self.key, self.value))
        scores = q @ k.transpose(2, 3) / math.sqrt(WIDTH // HEADS)  # (B, HEADS, P, P)
        x = x + self.mixing_output((scores.softmax(3) @ v).transpose(1, 2).flatten(2))
        return self.mlp(x)


class MixerBlock(nn.Module):
    """An MLP over positions, whose second matrix (`mixing_output`) has one row per position, and one over channels."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mixing_input = nn.Linear(GRID * GRID, WIDTH)
        self.mixing_output = nn.Linear(WIDTH, GRID * GRID)
        self.mlp = ChannelMlp()

    def forward(self, x):
        columns = self.norm(x).transpose(1, 2)  # (B, d, P)
        x = x + self.mixing_output(F.gelu(self.mixing_input(columns))).transpose(1, 2)
        return self.mlp(x)


class ResidualNet(nn.Module):
    def __init__(self, stem, make_block, classes=10):
        super().__init__()
        self.stem = stem
        self.blocks = nn.ModuleList(make_block() for _ in range(BLOCKS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, classes)

    def forward(self, images):
        """Returns the classes' scores and the stream after each block."""
        x, streams = self.stem(images), []
        for block in self.blocks:
            x = block(x)
            streams.append(x)
        return self.head(self.norm(x).mean(1)), streams


MODELS = {
    "cnn": lambda: ResidualNet(ConvStem(), ConvBlock),
    "vit": lambda: ResidualNet(PatchStem(with_positions=True), AttentionBlock),
    "mixer": lambda: ResidualNet(PatchStem(with_positions=False), MixerBlock),
}


def output_weights(block):
    """The matrices that write into the stream: {"weight": (d, HIDDEN), "mixing_weight": ...}; a CNN has only one."""
    if isinstance(block, ConvBlock):
        return {"weight": block.output.weight}
    return {"weight": block.mlp.output.weight, "mixing_weight": block.mixing_output.weight}


# ---- Optimisers -----------------------------------------------------------------------------------------------------


def newton_schulz(matrix):
    """Approximates U V^T of matrix = U S V^T by five steps of Muon's quintic."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.t() if tall else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        gram = x @ x.t()
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.t() if tall else x


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised; weight decay is decoupled. A convolution is a matrix out x (in * kh * kw)."""

    def __init__(self, params, lr, weight_decay, momentum=0.95):
        super().__init__(params, dict(lr=lr, weight_decay=weight_decay, momentum=momentum))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("momentum", torch.zeros_like(p))
                m.lerp_(p.grad, 1 - group["momentum"])
                direction = p.grad.lerp(m, group["momentum"]).flatten(1)
                shape_factor = math.sqrt(max(1, direction.shape[0] / direction.shape[1]))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(newton_schulz(direction).view_as(p), alpha=-group["lr"] * shape_factor)


def make_optimizers(model, name, weight_decay):
    """Muon takes the matrices of the blocks, AdamW the rest. Norms and biases do not decay."""
    matrices = [p for p in model.blocks.parameters() if p.ndim >= 2]
    hidden = {id(p) for p in matrices}
    others = [p for p in model.parameters() if p.ndim >= 2 and id(p) not in hidden]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    optimizers = []
    if name == "muon":
        optimizers.append(Muon(matrices, LEARNING_RATE["muon"], weight_decay))
    else:
        others += matrices
    groups = [{"params": others, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return optimizers + [torch.optim.AdamW(groups, lr=LEARNING_RATE["adamw"], betas=(0.9, 0.95))]


def rate_factor(step, steps):
    """Linear warm-up, constant, then linear down to FINAL_RATE in the last DECAY_FRACTION of the steps."""
    until_end = (steps - step) / (DECAY_FRACTION * steps)
    return min((step + 1) / WARMUP_STEPS, 1.0, max(until_end, FINAL_RATE))


def kept_by_decay(optimizer, weight_decay, steps):
    """What weight decay alone would leave of the first weights. Near 1, the run is too short to show an effect."""
    rate = LEARNING_RATE[optimizer]
    return math.prod(1 - rate * rate_factor(step, steps) * weight_decay for step in range(steps))


# ---- Measuring ------------------------------------------------------------------------------------------------------


def spectrum(matrix, k=TOP_K):
    """Returns (||M||_F^2 / ||M||_2^2, the share of ||M||_F^2 in the k largest singular values); (0, 0) for M = 0."""
    m = matrix.detach().double()
    gram = m.t() @ m if m.shape[0] > m.shape[1] else m @ m.t()
    energies = torch.linalg.eigvalsh(gram).clamp(min=0).flip(0)  # squared singular values, largest first
    total, largest = energies.sum().item(), energies[0].item()
    if largest == 0:
        return 0.0, 0.0
    return total / largest, energies[:k].sum().item() / total


def with_names(name, matrix):
    stable_rank, top_k = spectrum(matrix)
    return {f"{name}_stable_rank": stable_rank, f"{name}_top_k": top_k}


def measure(model, images, classes):
    """Measures every block on the same held-out images. The gradient is measured twice: as it is, and with each image's
    part scaled to norm 1, because the few images that a good model gets wrong otherwise dominate it. Ten scores whose
    gradients sum to 0 bound its rank after the last block to about 9, trained or not."""
    scores, streams = model(images)
    gradients = torch.autograd.grad(F.cross_entropy(scores, classes), streams)
    blocks = []
    for block, stream, gradient in zip(model.blocks, streams, gradients):
        rows = stream.flatten(0, 1)  # (B P, d)
        image_norms = gradient.double().flatten(1).norm(dim=1).clamp(min=1e-300).view(-1, 1, 1)
        values = {}
        for name, weight in output_weights(block).items():
            values.update(with_names(name, weight))
        values.update(with_names("activation", rows))
        values.update(with_names("activation_centred", rows - rows.mean(0)))
        values.update(with_names("gradient", gradient.flatten(0, 1)))
        values.update(with_names("gradient_per_image", (gradient / image_norms).flatten(0, 1)))
        blocks.append(values)
    return blocks


def random_reference(model, seed):
    """The same numbers for Gaussian matrices of the shapes that are measured."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {name + "s": tuple(weight.shape) for name, weight in output_weights(model.blocks[0]).items()}
    shapes["activations"] = (PROBE_IMAGES * GRID * GRID, WIDTH)
    reference = {}
    for name, shape in shapes.items():
        stable_rank, top_k = spectrum(torch.randn(shape, generator=generator))
        reference[name] = {"shape": shape, "stable_rank": stable_rank, "top_k": top_k}
    return reference


@torch.no_grad()
def accuracy(model, images, classes):
    guesses = torch.cat([model(part)[0].argmax(1) for part in images.split(500)])
    return (guesses == classes).float().mean().item()


# ---- Runs -----------------------------------------------------------------------------------------------------------


class Progress:
    """Says on stderr what is running and how long the rest will take. On a terminal it rewrites one line."""

    def __init__(self, steps_to_do):
        self.begin, self.done, self.to_do = time.monotonic(), 0, steps_to_do
        self.on_terminal = sys.stderr.isatty()

    def step(self, name, step, steps):
        self.done += 1
        if step != steps and not (self.on_terminal and step % 10 == 0):
            return
        left = (time.monotonic() - self.begin) / self.done * (self.to_do - self.done)
        end = "\r" if self.on_terminal and self.done != self.to_do else "\n"
        print(f"{name:22} step {step}/{steps}  {left / 60:5.1f} min left", end=end, file=sys.stderr, flush=True)


def train_step(model, optimizers, images, classes):
    """Returns the loss before the step."""
    loss = F.cross_entropy(model(images)[0], classes)
    model.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
    return loss.item()


def train(settings, data, progress):
    """One run: returns what `--out` holds about it."""
    (train_images, train_classes), (test_images, test_classes) = data
    probe = test_images[:PROBE_IMAGES], test_classes[:PROBE_IMAGES]
    steps, name, weight_decay = settings["steps"], settings["optimizer"], settings["weight_decay"]
    torch.manual_seed(settings["seed"])  # the same first weights and the same batches for both optimisers
    model = MODELS[settings["model"]]()
    optimizers = make_optimizers(model, name, weight_decay)
    groups = [(group, group["lr"]) for optimizer in optimizers for group in optimizer.param_groups]
    points = [{"step": 0, "blocks": measure(model, *probe)}]
    for step in range(steps):
        for group, rate in groups:
            group["lr"] = rate * rate_factor(step, steps)
        batch = torch.randint(len(train_images), (BATCH,))
        loss = train_step(model, optimizers, train_images[batch], train_classes[batch])
        if not math.isfinite(loss):
            raise SystemExit(f"{run_name(settings)}: the loss is not finite at step {step + 1}")
        if (step + 1) % max(1, steps // settings["points"]) == 0 or step + 1 == steps:
            points.append({"step": step + 1, "blocks": measure(model, *probe)})
        progress.step(run_name(settings), step + 1, steps)
    return {"model": settings["model"], "optimizer": name, "weight_decay": weight_decay, "width": WIDTH, "k": TOP_K,
            "accuracy": accuracy(model, test_images, test_classes),
            "kept_by_decay": kept_by_decay(name, weight_decay, steps),
            "random": random_reference(model, settings["seed"]), "points": points}


def run_name(settings):
    return f"{settings['model']} {settings['optimizer']} decay {settings['weight_decay']:g}"


def write_json(path, value):
    """Replaces the file in one step, so that a reader never sees half of it."""
    with open(path + ".part", "w") as file:
        json.dump(value, file)
    os.replace(path + ".part", path)


def cache_path(cache, settings):
    return os.path.join(cache, "{model}-{optimizer}-{weight_decay:g}-{steps}-{seed}.json".format(**settings))


def read_cached(cache, settings):
    """The run of an earlier call, or None if there is none, or one of other settings."""
    try:
        with open(cache_path(cache, settings)) as file:
            stored = json.load(file)
        return stored["run"] if stored["settings"] == settings else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def all_settings(arguments, sizes):
    """One entry per run. The models take turns, so that the time left is soon right."""
    with open(__file__, "rb") as file:
        script = hashlib.sha256(file.read()).hexdigest()  # an edited script does not continue from older runs
    shared = dict(sizes, seed=arguments.seed, script=script)
    return [dict(shared, model=model, optimizer=optimizer, weight_decay=weight_decay)
            for weight_decay in arguments.weight_decays for optimizer in LEARNING_RATE for model in MODELS]


def run_all(arguments, sizes):
    runs = [(settings, arguments.cache and read_cached(arguments.cache, settings))
            for settings in all_settings(arguments, sizes)]
    generator = torch.Generator().manual_seed(arguments.seed)
    data = make_images(sizes["train_images"], generator), make_images(sizes["test_images"], generator)
    progress = Progress(sizes["steps"] * sum(not run for _, run in runs))
    results = []
    for settings, run in runs:
        if not run:
            run = train(settings, data, progress)
            if arguments.cache:
                write_json(cache_path(arguments.cache, settings), {"settings": settings, "run": run})
        results.append(run)
    return sorted(results, key=lambda run: list(MODELS).index(run["model"]))


# ---- The table ------------------------------------------------------------------------------------------------------

COLUMNS = {"weights": "weight", "mixing w.": "mixing_weight", "activations": "activation",
           "act. centred": "activation_centred", "gradients": "gradient", "per image": "gradient_per_image"}


def table_cell(first, last, name):
    key = name + "_stable_rank"
    return f"{first[key]:.1f} > {last[key]:.1f}" if key in first else "-"


def print_table(runs):
    print("Stable rank, start > end. kept: what weight decay alone would leave of the first weights. mixing w.: the\n"
          "projection of attention, or of token mixing. per image: gradients, each image's part scaled to norm 1.\n")
    titles = "".join(f"{title:>14}" for title in COLUMNS)
    print(f"{'model':6}{'optim':6}{'decay':>6}{'kept':>6}{'accuracy':>9}{'block':>6}{titles}")
    for run in runs:
        first, last = run["points"][0]["blocks"], run["points"][-1]["blocks"]
        for block in (0, (BLOCKS - 1) // 2, BLOCKS - 1):
            cells = "".join(f"{table_cell(first[block], last[block], name):>14}" for name in COLUMNS.values())
            print(f"{run['model']:6}{run['optimizer']:6}{run['weight_decay']:6g}{run['kept_by_decay']:6.2f}"
                  f"{run['accuracy']:9.3f}{block + 1:6}{cells}")
    print("\nRandom Gaussian matrices of the same shapes (gradients as activations):")
    for model, random in {run["model"]: run["random"] for run in runs}.items():
        print(f"{model:6}" + ", ".join(f"{name} {value['stable_rank']:.1f}" for name, value in random.items()))


# ---- Self-check -----------------------------------------------------------------------------------------------------


def spectrum_by_svd(matrix, k):
    energies = torch.linalg.svd(matrix.double()).S ** 2
    return (energies.sum() / energies.max()).item(), (energies[:k].sum() / energies.sum()).item()


def check(what, value, expected, tolerance):
    if not abs(value - expected) <= tolerance:
        raise SystemExit(f"self-check failed: {what} is {value:.6g}, expected {expected:.6g} within {tolerance:g}")


def self_check():
    """Compares with known answers and with a plain SVD. Newton-Schulz brings singular values only near 1, by design."""
    gaussian = torch.randn(48, 96, generator=torch.Generator().manual_seed(1))
    diagonal = torch.diag(torch.tensor([1.0, 3.0, 2.0, 1.0]))  # energies 9, 4, 1, 1
    rank_one = torch.outer(torch.arange(1.0, 8.0), torch.arange(1.0, 5.0))
    known = {"identity": (torch.eye(20), 5, 20, 0.25), "rank one": (rank_one, 2, 1, 1),
             "diagonal": (diagonal, 2, 15 / 9, 13 / 15), "zero": (torch.zeros(3, 5), 2, 0, 0)}
    for name, (matrix, k, stable_rank, top_k) in known.items():
        check(f"stable rank of {name}", spectrum(matrix, k)[0], stable_rank, 1e-6)
        check(f"top {k} of {name}", spectrum(matrix, k)[1], top_k, 1e-6)
    for name, matrix in {"wide": gaussian, "tall": gaussian.t(), "square": gaussian[:, :48]}.items():
        for value, naive in zip(spectrum(matrix, 6), spectrum_by_svd(matrix, 6)):
            check(f"{name} Gaussian", value, naive, 1e-6 * naive)
    for name, matrix in {"wide": gaussian, "tall": gaussian.t()}.items():
        u, _, vh = torch.linalg.svd(matrix.double(), full_matrices=False)
        rotated = u.t() @ newton_schulz(matrix.double()) @ vh.t()  # diagonal if the singular vectors are kept
        check(f"Newton-Schulz, {name}: smallest", rotated.diagonal().min().item(), 0.95, 0.28)
        check(f"Newton-Schulz, {name}: largest", rotated.diagonal().max().item(), 0.95, 0.28)
        off_diagonal = rotated - torch.diag(rotated.diagonal())
        check(f"Newton-Schulz, {name}: off the diagonal", off_diagonal.abs().max().item(), 0, 1e-9)
    print("self-check passed")


# ---- Command line ---------------------------------------------------------------------------------------------------


def number(kind, low, high):
    """An argparse type: a number of this kind from low to high."""
    def parse(text):
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"must be {kind.__name__}, from {low} to {high}, not {text!r}")
        return value
    return parse


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=number(int, 1, 10**6), help=f"training steps per run (default {FULL['steps']})")
    parser.add_argument("--quick", action="store_true", help="a few steps and images, to see that everything works")
    parser.add_argument("--weight-decays", type=number(float, 0, 10), nargs="+", default=[0.0, 0.1], metavar="X",
                        help="weight decays to compare, 0 to 10 (default 0 0.1)")
    parser.add_argument("--seed", type=number(int, 0, 2**31), default=1,
                        help="of images, first weights and batches (default 1)")
    parser.add_argument("--out", metavar="FILE", help="write the results as JSON")
    parser.add_argument("--cache", metavar="DIR", help="keep finished runs there and continue from them")
    parser.add_argument("--threads", type=number(int, 1, 256), default=1, help="threads to compute with (default 1)")
    parser.add_argument("--self-check", action="store_true", help="compare the measuring functions with a plain SVD")
    arguments = parser.parse_args()
    try:
        if arguments.cache:
            os.makedirs(arguments.cache, exist_ok=True)
        if arguments.out and not os.path.isdir(os.path.dirname(os.path.abspath(arguments.out))):
            parser.error(f"--out {arguments.out}: the folder does not exist")
    except OSError as error:
        parser.error(f"--cache {arguments.cache}: {error.strerror}")
    return arguments


def main():
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    torch.set_flush_denormal(True)  # the moments of AdamW become denormal numbers, which triple the time of a step
    if arguments.self_check:
        return self_check()
    sizes = dict(QUICK if arguments.quick else FULL)
    sizes["steps"] = arguments.steps or sizes["steps"]
    runs = run_all(arguments, sizes)
    print_table(runs)
    if arguments.out:
        write_json(arguments.out, {"runs": runs})


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit("\ninterrupted; with --cache, the same command continues after the last finished run")
