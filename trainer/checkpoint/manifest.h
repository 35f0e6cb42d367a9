// manifest.json: what a complete checkpoint directory holds. Written last, so its presence says
// that every file it names was written in full; its hashes say whether they still are what was
// written.
//
//   {"format": "taopd-checkpoint", "version": 1, "step": 120,
//    "files": {"student/model.safetensors": {"size_bytes": 123, "sha256": "..."}, ...}}
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "common/base/status.h"

namespace taopd {

inline constexpr char kManifestName[] = "manifest.json";

struct ManifestFile {
  int64_t size_bytes = 0;
  std::string sha256;
};

struct CheckpointManifest {
  int64_t step = 0;
  std::map<std::string, ManifestFile> files;  // by path relative to the checkpoint
};

// Fsyncs every file and directory below `dir`, then writes the manifest of what is there. Refuses
// (FAILED_PRECONDITION) an empty directory, links and special files, and a file called
// manifest.json.
absl::Status WriteManifest(const std::string& dir, int64_t step);

// DATA_LOSS when it is absent, malformed, or of another step.
absl::StatusOr<CheckpointManifest> ReadManifest(const std::string& dir, int64_t step);

// DATA_LOSS unless every file has its size; `hashes` compares the contents as well.
absl::Status VerifyCheckpoint(const std::string& dir, int64_t step, bool hashes);

}  // namespace taopd
