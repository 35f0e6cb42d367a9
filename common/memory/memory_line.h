// The memory that a process needs, as a list of named lines. Memory plans consist of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace taopd {

enum class MemoryKind {
  kHeld,         // taken for the lifetime of the process; counts in the total
  kReclaimable,  // pages of mapped files: the system takes them back when memory is short
  kLoading,      // taken while the process starts, and returned before it works
  kLimit,        // a limit that work in flight may reach; nothing is allocated for it
};
const char* NameOf(MemoryKind kind);  // "held", "reclaimable", "loading", "limit"

// The things that memory is planned for.
enum class MemoryItem {
  // Items of an engine.
  kRuntime,
  kEmbedding,
  kNormsAndBiases,
  kHead,
  kProjections,
  kWeightFiles,
  kPackedProjections,
  kPackedHead,
  kActivations,
  kHeadWorkspace,
  kCudaGraphs,
  kKvPool,
  // Items of a trainer.
  kAdapters,
  kMasterWeights,
  kOptimizerMoments,
  kCheckpointCopy,
  kOffloadBuffers,
  kGradients,
  kGradientBuckets,
  kTrainingActivations,
  kBackwardBuffers,
  kLossHead,
  kHeap,
  kScoredRollouts,
  kRolloutWeights,
  kBeyondRollouts,
  kTeacherWeights,
  kTeacherAverage,
  kTeacherEngine,
  kEvaluationWeights,
  kEvaluationEngine,
  // Items of a server.
  kMessages,
  kStructuredOutput,
};
// Returns the name that people read: "KV pool".
const char* NameOf(MemoryItem item);

struct MemoryLine {
  MemoryItem item = MemoryItem::kRuntime;
  std::string device;  // "cpu", "cuda:0"
  MemoryKind kind = MemoryKind::kHeld;
  int64_t bytes = 0;
  std::string note;  // for people; may be empty
};

// Appends a line unless it has no bytes.
void AppendLine(MemoryItem item, const std::string& device, int64_t bytes, const std::string& note,
                std::vector<MemoryLine>* lines, MemoryKind kind = MemoryKind::kHeld);
// Adds the bytes to the line of the same item, device and kind, or appends the line if there is
// none.
void AddLine(const MemoryLine& line, std::vector<MemoryLine>* lines);

// Returns the sum of the device's lines of a kind.
int64_t BytesOfKind(const std::vector<MemoryLine>& lines, const std::string& device,
                    MemoryKind kind);
inline int64_t HeldBytes(const std::vector<MemoryLine>& lines, const std::string& device) {
  return BytesOfKind(lines, device, MemoryKind::kHeld);
}

// Returns the device's largest line of kind kHeld, or nullptr if there is none. Ties go to the
// first.
const MemoryLine* LargestLine(const std::vector<MemoryLine>& lines, const std::string& device);

// Returns one row per line, in columns: device, name, bytes, size and note. The names of lines of
// other kinds than kHeld include the kind: "weight files (reclaimable)". Ends with a newline.
std::string MemoryTable(const std::vector<MemoryLine>& lines);

}  // namespace taopd
