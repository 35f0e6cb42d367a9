#include "common/memory/memory_line.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "common/base/memory.h"
#include "common/base/status.h"

namespace taopd {
namespace {

constexpr size_t kNumColumns = 5;
using TableRow = std::array<std::string, kNumColumns>;

std::string LabelOf(const MemoryLine& line) {
  if (line.kind == MemoryKind::kHeld) return NameOf(line.item);
  return Concat(NameOf(line.item), line.kind == MemoryKind::kLoading ? " (while " : " (",
                NameOf(line.kind), ")");
}

constexpr std::pair<MemoryItem, const char*> kNames[] = {
    {MemoryItem::kRuntime, "runtime"},
    {MemoryItem::kEmbedding, "embedding"},
    {MemoryItem::kNormsAndBiases, "norms and biases"},
    {MemoryItem::kHead, "head"},
    {MemoryItem::kProjections, "projections"},
    {MemoryItem::kWeightFiles, "weight files"},
    {MemoryItem::kPackedProjections, "packed projections"},
    {MemoryItem::kPackedHead, "packed head"},
    {MemoryItem::kActivations, "activations"},
    {MemoryItem::kHeadWorkspace, "head workspace"},
    {MemoryItem::kCudaGraphs, "CUDA graphs"},
    {MemoryItem::kKvPool, "KV pool"},
    {MemoryItem::kAdapters, "adapters"},
    {MemoryItem::kMasterWeights, "master weights"},
    {MemoryItem::kOptimizerMoments, "optimizer moments"},
    {MemoryItem::kCheckpointCopy, "checkpoint copy"},
    {MemoryItem::kOffloadBuffers, "offload buffers"},
    {MemoryItem::kGradients, "gradients"},
    {MemoryItem::kGradientBuckets, "gradient buckets"},
    {MemoryItem::kTrainingActivations, "training activations"},
    {MemoryItem::kBackwardBuffers, "backward buffers"},
    {MemoryItem::kLossHead, "loss head"},
    {MemoryItem::kHeap, "heap"},
    {MemoryItem::kScoredRollouts, "scored rollouts"},
    {MemoryItem::kRolloutWeights, "rollout weights"},
    {MemoryItem::kTeacherWeights, "teacher weights"},
    {MemoryItem::kTeacherAverage, "teacher average"},
    {MemoryItem::kTeacherEngine, "teacher engine"},
    {MemoryItem::kEvaluationWeights, "evaluation weights"},
    {MemoryItem::kEvaluationEngine, "evaluation engine"},
    {MemoryItem::kBeyondRollouts, "training, beyond the rollouts' memory"},
    {MemoryItem::kMessages, "messages"},
    {MemoryItem::kStructuredOutput, "structured output"},
};
static_assert(std::size(kNames) == static_cast<size_t>(MemoryItem::kStructuredOutput) + 1);

}  // namespace

const char* NameOf(MemoryKind kind) {
  constexpr const char* kKinds[] = {"held", "reclaimable", "loading", "limit"};
  return kKinds[static_cast<size_t>(kind)];
}

const char* NameOf(MemoryItem item) {
  for (const auto& [named, name] : kNames) {
    if (named == item) return name;
  }
  return "";
}

void AppendLine(MemoryItem item, const std::string& device, int64_t bytes, const std::string& note,
                std::vector<MemoryLine>* lines, MemoryKind kind) {
  if (bytes > 0) lines->push_back({item, device, kind, bytes, note});
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
