#!/usr/bin/env python3
"""Predicts time and memory traffic of the CUDA kernels on GPUs that are not at hand.

    tests/gpu/cost_model.py [--model NAME] [--device NAME] [--rows N] [--context L] [--workspace-mb M]

A roofline model: a kernel takes as long as the slowest of its matrix products, its float32 arithmetic on CUDA cores and its
memory traffic, at the rates below, and each launch adds some microseconds. It is computed, not measured: a kernel that is
much slower than its line on a real GPU is worth a look, and none can be faster by more than the caches explain."""

import argparse
import dataclasses
import math

# Peak rates of the vendors' data sheets: dense bfloat16 products and float32 on CUDA cores in TFLOP/s, memory in GB/s.
# A100 is the SXM card with 80 GB, H100 the SXM card, B200 one GPU of an HGX board.


@dataclasses.dataclass(frozen=True)
class Device:
    name: str
    tensor_tflops: float
    float_tflops: float
    memory_gb_s: float


DEVICES = [Device("A100", 312, 19.5, 2039), Device("L40S", 362, 91.6, 864), Device("H100", 989, 67, 3350),
           Device("H200", 989, 67, 4800), Device("B200", 2250, 75, 8000)]
# The shares of the peaks that good kernels reach: 790 of 989 TFLOP/s for cuBLASLt and 4.3 of 4.8 TB/s on an H200,
# FlashAttention 2 with 370 of 989 on an H100. Scalar kernels with loads in their loops reach a quarter of float32's peak.
PRODUCTS, MEMORY, FLASH, SCALAR = 0.8, 0.9, 0.37, 0.25
LAUNCH_S = 4e-6
# kMinStudentRows of kernels/include/taopd/head/logit_chunk.h, and the limit of PlanFusedHead.
MIN_STUDENT_ROWS, MOST_LOGITS_ROWS = 512, 1024


@dataclasses.dataclass(frozen=True)
class Model:
    name: str
    hidden: int
    vocabulary: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int


MODELS = [Model("Qwen3-0.6B", 1024, 151936, 28, 16, 8, 128), Model("Qwen3-1.7B", 2048, 151936, 28, 16, 8, 128),
          Model("Qwen3-8B", 4096, 151936, 36, 32, 8, 128), Model("Llama-3.1-8B", 4096, 128256, 32, 32, 8, 128)]


@dataclasses.dataclass(frozen=True)
class Cost:
    """What one call does: FLOP in products at a share of the peak, FLOP on CUDA cores, bytes, launches."""
    name: str
    product_flop: float = 0
    scalar_flop: float = 0
    memory_bytes: float = 0
    launches: int = 1
    share: float = PRODUCTS

    def parts_s(self, device):
        return (self.product_flop / (device.tensor_tflops * 1e12 * self.share),
                self.scalar_flop / (device.float_tflops * 1e12 * SCALAR),
                self.memory_bytes / (device.memory_gb_s * 1e9 * MEMORY))

    def seconds(self, device):
        return max(self.parts_s(device)) + self.launches * LAUNCH_S

    def bound(self, device):
        parts = (*self.parts_s(device), self.launches * LAUNCH_S)
        return ("products", "CUDA cores", "memory", "launches")[parts.index(max(parts))]


def head_bytes(model):
    """Of a row of logits, and of a row of the chunk: float32 logits, bfloat16 exponentials, d hidden in float32 and hidden."""
    return model.vocabulary * 4, model.vocabulary * 2 + model.hidden * 6


def least_head_workspace(rows, model):
    """What the student's head takes at least: StudentHeadBytesOnGpu in kernels/include/taopd/head/logit_chunk.h."""
    return (40 << 20) + min(rows, MIN_STUDENT_ROWS) * sum(head_bytes(model))


def head_plans(rows, model, workspace_bytes):
    """(rows of logits, rows of a chunk) that fit, for each number of chunks, as in PlanFusedHead."""
    per_logits_row, per_row = head_bytes(model)
    for chunks in range(1, rows + 1):
        chunk = math.ceil(rows / chunks)
        logits_rows = min(MOST_LOGITS_ROWS, chunk, (workspace_bytes - chunk * per_row) // per_logits_row)
        if logits_rows > 0:
            yield logits_rows, chunk


def student_head(rows, model, plan):
    """The gradient of a dense objective: three products; lm_head is read for each run of logits and for each chunk, its
    float32 gradient is read and written for each chunk."""
    logits_rows, chunk = plan
    chunks, rest = math.ceil(rows / chunk), rows % chunk
    runs = rows // chunk * math.ceil(chunk / logits_rows) + math.ceil(rest / logits_rows)
    matrix, logits = model.vocabulary * model.hidden, rows * model.vocabulary
    traffic = runs * matrix * 2 + chunks * matrix * (2 + 8) + logits * (4 + 2 * 4 + 2 + 2 * 2)
    return Cost(f"student head, {logits_rows} rows of logits, chunks of {chunk}", 6 * rows * matrix, 0, traffic,
                runs * 5 + chunks * 4)


def best_student_head(rows, model, workspace_bytes, device):
    plans = [student_head(rows, model, plan) for plan in head_plans(rows, model, workspace_bytes)]
    return min(plans, key=lambda cost: cost.seconds(device)) if plans else None


def scoring_head(rows, model, workspace_bytes):
    matrix, logits = model.vocabulary * model.hidden, rows * model.vocabulary
    chunk = max(1, min(rows, workspace_bytes // (model.vocabulary * 4)))
    chunks = math.ceil(rows / chunk)
    return Cost(f"scoring head, chunks of {chunk}", 2 * rows * matrix, 0, chunks * matrix * 2 + logits * 8, chunks * 2)


def attention_flop(model, pairs):
    return 4 * model.heads * model.head_size * pairs


def kv_bytes(model, positions):
    return 2 * model.kv_heads * model.head_size * 2 * positions


def per_layer(model, rows, context):
    """Costs of one layer: a prompt of `context` tokens, and `rows` sequences of that length that decode a token."""
    pairs, width = context * (context + 1) / 2, model.heads * model.head_size
    tile_rows = max(1, 16 // (model.heads // model.kv_heads))  # of the project's own kernel: each tile reads all its keys
    flop, io = attention_flop(model, pairs), context * width * 4
    return [
        Cost("prefill attention, custom", 0, flop, io + kv_bytes(model, pairs / tile_rows) * 0.1, 1),
        Cost("prefill attention, FlashAttention on gathered pages", flop, 0, io + 5 * kv_bytes(model, context), 8, FLASH),
        Cost("decode attention, custom", 0, attention_flop(model, rows * context), kv_bytes(model, rows * context), 2),
        Cost("RMSNorm, forward", 0, 0, context * model.hidden * 2 * 4),
        Cost("RMSNorm, backward", 0, 0, context * model.hidden * 2 * 7 + context / 32 * model.hidden * 8, 2),
    ]


def costs(model, device, rows, context, workspace_bytes):
    head = best_student_head(rows, model, max(workspace_bytes, least_head_workspace(rows, model)), device)
    parameters = model.vocabulary * model.hidden
    return [
        head, scoring_head(rows, model, workspace_bytes), *per_layer(model, 64, context),
        Cost("AdamW of lm_head", 0, 0, parameters * (4 + 2 * 2 + 2 * 4 + 2 * 4 + 4))]


def table(model, devices, rows, context, workspace_bytes):
    lines = [f"{model.name}: {rows} rows of the heads, {context} tokens, {workspace_bytes >> 20} MiB of workspace", "",
             "| GPU | kernel | ms | bound by | GB | TFLOP |", "|---|---|---|---|---|---|"]
    for device in devices:
        for cost in costs(model, device, rows, context, workspace_bytes):
            lines.append(f"| {device.name} | {cost.name} | {cost.seconds(device) * 1e3:.3g} | {cost.bound(device)} | "
                         f"{cost.memory_bytes / 1e9:.3g} | {(cost.product_flop + cost.scalar_flop) / 1e12:.3g} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=[model.name for model in MODELS], default="Qwen3-8B")
    parser.add_argument("--device", choices=[device.name for device in DEVICES], action="append")
    parser.add_argument("--rows", type=int, default=8192, help="rows of the heads (default: 8192)")
    parser.add_argument("--context", type=int, default=8192, help="tokens of a prompt and of each sequence (default: 8192)")
    parser.add_argument("--workspace-mb", type=int, default=256, help="workspace of the heads in MiB (default: 256; the student's takes at least 512 rows)")
    options = parser.parse_args()
    model = next(model for model in MODELS if model.name == options.model)
    devices = [device for device in DEVICES if not options.device or device.name in options.device]
    print(table(model, devices, options.rows, options.context, options.workspace_mb << 20))


if __name__ == "__main__":
    main()
