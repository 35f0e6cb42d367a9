#include "common/memory/memory_line.h"

#include <algorithm>
#include <array>

#include "common/base/memory.h"

namespace taopd {
namespace {

constexpr size_t kNumColumns = 5;
using TableRow = std::array<std::string, kNumColumns>;

std::string LabelOf(const MemoryLine& line) {
  const std::string name = NameOf(line.item);
  switch (line.kind) {
    case MemoryKind::kHeld:
      break;
    case MemoryKind::kReclaimable:
      return name + " (reclaimable)";
    case MemoryKind::kLoading:
      return name + " (while loading)";
    case MemoryKind::kLimit:
      return name + " (limit)";
  }
  return name;
}

}  // namespace

const char* NameOf(MemoryItem item) {
  using enum MemoryItem;
  switch (item) {
    case kRuntime:
      return "runtime";
    case kEmbedding:
      return "embedding";
    case kNormsAndBiases:
      return "norms and biases";
    case kHead:
      return "head";
    case kProjections:
      return "projections";
    case kWeightFiles:
      return "weight files";
    case kPackedProjections:
      return "packed projections";
    case kPackedHead:
      return "packed head";
    case kActivations:
      return "activations";
    case kHeadWorkspace:
      return "head workspace";
    case kCudaGraphs:
      return "CUDA graphs";
    case kKvPool:
      return "KV pool";
    case kAdapters:
      return "adapters";
    case kMasterWeights:
      return "master weights";
    case kOptimizerMoments:
      return "optimizer moments";
    case kCheckpointCopy:
      return "checkpoint copy";
    case kOffloadBuffers:
      return "offload buffers";
    case kGradients:
      return "gradients";
    case kGradientBuckets:
      return "gradient buckets";
    case kTrainingActivations:
      return "training activations";
    case kBackwardBuffers:
      return "backward buffers";
    case kLossHead:
      return "loss head";
    case kHeap:
      return "heap";
    case kScoredRollouts:
      return "scored rollouts";
    case kRolloutWeights:
      return "rollout weights";
    case kTeacherWeights:
      return "teacher weights";
    case kTeacherAverage:
      return "teacher average";
    case kTeacherEngine:
      return "teacher engine";
    case kEvaluationWeights:
      return "evaluation weights";
    case kEvaluationEngine:
      return "evaluation engine";
    case kBeyondRollouts:
      return "training, beyond the rollouts' memory";
    case kMessages:
      return "messages";
    case kStructuredOutput:
      return "structured output";
  }
  return "";
}

void AddLine(const MemoryLine& line, std::vector<MemoryLine>* lines) {
  for (MemoryLine& present : *lines) {
    if (present.item != line.item || present.kind != line.kind || present.device != line.device)
      continue;
    present.bytes += line.bytes;
    return;
  }
  lines->push_back(line);
}

int64_t BytesOfKind(const std::vector<MemoryLine>& lines, const std::string& device,
                    MemoryKind kind) {
  int64_t bytes = 0;
  for (const MemoryLine& line : lines) {
    if (line.kind == kind && line.device == device) bytes += line.bytes;
  }
  return bytes;
}

const MemoryLine* LargestLine(const std::vector<MemoryLine>& lines, const std::string& device) {
  const MemoryLine* largest = nullptr;
  for (const MemoryLine& line : lines) {
    if (line.kind != MemoryKind::kHeld || line.device != device) continue;
    if (largest == nullptr || line.bytes > largest->bytes) largest = &line;
  }
  return largest;
}

std::string MemoryTable(const std::vector<MemoryLine>& lines) {
  std::vector<TableRow> rows = {{"device", "memory for", "bytes", "size", "note"}};
  for (const MemoryLine& line : lines) {
    rows.push_back({line.device, LabelOf(line), std::to_string(line.bytes), MemoryText(line.bytes),
                    line.note});
  }
  std::array<size_t, kNumColumns> widths{};
  for (const TableRow& row : rows) {
    for (size_t c = 0; c < kNumColumns; ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string table;
  for (const TableRow& row : rows) {
    std::string text;
    for (size_t c = 0; c < kNumColumns; ++c) {
      const std::string padding(widths[c] - row[c].size(), ' ');
      const bool is_number = c == 2 || c == 3;
      if (c > 0) text += "  ";
      text += is_number ? padding + row[c] : row[c] + padding;
    }
    text.erase(text.find_last_not_of(' ') + 1);
    table += text + "\n";
  }
  return table;
}

}  // namespace taopd
