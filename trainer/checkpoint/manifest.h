// manifest.json lists the files of a complete checkpoint. It is written last: its presence shows
// that every file was written in full, and its hashes show whether a file has changed since.
//
//   {"format": "taopd-checkpoint", "version": 1, "step": 120,
//    "files": {"model/model.safetensors": {"size_bytes": 123, "sha256": "..."}, ...}}
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

// Syncs every file and directory below `dir` to disk, then writes their manifest. Returns
// FAILED_PRECONDITION for an empty directory, for links and special files, and if there is a
// manifest.json already.
absl::Status WriteManifest(const std::string& dir, int64_t step);

// Returns DATA_LOSS if the manifest is missing, malformed or of another step.
absl::StatusOr<CheckpointManifest> ReadManifest(const std::string& dir, int64_t step);

// Verifies the files in the manifest whose names begin with `prefix`, such as "model/" ("" means
// all), against the files below `dir`. Returns DATA_LOSS if a file is missing or has another size
// and, with `hashes`, if its content has another hash.
absl::Status VerifyFiles(const CheckpointManifest& manifest, const std::string& prefix,
                         const std::string& dir, bool hashes);

// Reads the manifest of `dir` and verifies all its files with VerifyFiles.
absl::Status VerifyCheckpoint(const std::string& dir, int64_t step, bool hashes);

}  // namespace taopd
