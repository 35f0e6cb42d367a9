// The files of weights that a trainer sends in parts (PutWeights of proto/taopd/v1/policy.proto).
//
// They are stored in a directory of their own, which is made for the first part and removed at the
// end. A restarted server has none of them, and the trainer sends them from the beginning.
//
// The served model bounds what clients can store: kMaxVersions versions, each with as many bytes as
// the model plus kOtherBytes, and kMaxFiles files. One more version replaces the one whose last
// part arrived the longest time ago.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "common/base/status.h"

namespace taopd {

// A part of a file of weights: the fields of PutWeightsRequest.
struct WeightFilePart {
  std::string version;
  std::string file;
  int64_t offset = 0;
  int64_t file_bytes = 0;
  std::string_view data;
  std::string sha256;
};

// Returns INVALID_ARGUMENT unless `name` can be that of a file or a directory inside another one.
// `field` is the name of the request's field.
absl::Status CheckPlainName(const char* field, const std::string& name);

// Not thread-safe.
class ReceivedWeights {
 public:
  // The largest WeightFilePart::data.
  static constexpr int64_t kMaxPartBytes = int64_t{16} << 20;
  // Besides the current weights: one that is being sent and one that was abandoned.
  static constexpr size_t kMaxVersions = 2;
  static constexpr size_t kMaxFiles = 1024;  // of a version
  // In addition to a model's weights, a directory has small files: headers, config.json, an index.
  static constexpr int64_t kOtherBytes = int64_t{256} << 20;

  // The directory is made in `parent`, or in the system's directory for temporary files if it is
  // empty.
  explicit ReceivedWeights(std::string parent) : parent_(std::move(parent)) {}
  // Removes all files.
  ~ReceivedWeights();
  ReceivedWeights(const ReceivedWeights&) = delete;
  ReceivedWeights& operator=(const ReceivedWeights&) = delete;

  // Stores a part of a file for a model of `model_bytes`. If the size of the file differs from
  // before, the file starts over. Returns how many bytes of the file have arrived. The errors are
  // those of policy.proto.
  absl::StatusOr<int64_t> Put(const WeightFilePart& part, int64_t model_bytes);
  // Returns the directory with the files of a version, or NOT_FOUND if no part of it has arrived.
  absl::StatusOr<std::string> DirectoryOf(const std::string& version) const;
  // Removes all files. Files that are mapped stay readable.
  void Clear();

 private:
  using Sizes = std::map<std::string, int64_t>;
  struct Version {
    std::string name;
    Sizes file_bytes;  // the sizes of whole files, by name
  };

  std::list<Version>::const_iterator Find(const std::string& name) const;
  // Finds or adds a version, and makes it the newest one. If there are too many, removes the
  // oldest.
  absl::StatusOr<Version*> Touch(const std::string& name);
  void Remove(const Version& version);
  absl::Status MakeOwnDirectory();
  std::string PathOf(const std::string& version) const { return dir_ + "/" + version; }
  std::string PathOf(const WeightFilePart& part, bool is_whole = true) const;

  const std::string parent_;
  std::string dir_;              // empty until a part comes
  std::list<Version> versions_;  // in the order in which their last parts arrived
};

}  // namespace taopd
