#include "server/http/generation/request_body.h"

#include <absl/synchronization/mutex.h>

#include "common/base/random.h"
#include "common/io/jsonl.h"
#include "server/serving/excerpt.h"

namespace taopd {
namespace {

constexpr int kMaxParallelParses = 2;

// A parsed body takes up to some 20 times the memory of its text, so only few are held at once.
class ParseSlot {
 public:
  ParseSlot() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(
        +[](int* used) { return *used < kMaxParallelParses; }, &num_used_));
    ++num_used_;
  }
  ~ParseSlot() {
    absl::MutexLock lock(&mutex_);
    --num_used_;
  }
  ParseSlot(const ParseSlot&) = delete;
  ParseSlot& operator=(const ParseSlot&) = delete;

 private:
  ABSL_CONST_INIT static absl::Mutex mutex_;
  static int num_used_;
};
ABSL_CONST_INIT absl::Mutex ParseSlot::mutex_(absl::kConstInit);
int ParseSlot::num_used_ = 0;

}  // namespace

std::optional<HttpError> ReadBody(
    const std::string& body,
    const std::function<std::optional<HttpError>(const nlohmann::json&)>& read) {
  ParseSlot slot;
  const absl::StatusOr<nlohmann::json> json = ParseJson(body, "body");
  if (!json.ok()) {
    return HttpError{
        400, "Bad Request", "body",
        Concat("1 validation error:\n  ", Excerpt(std::string(json.status().message())))};
  }
  if (!json->is_object()) {
    return HttpError{400, "Bad Request", "body",
                     "1 validation error:\n  the body must be a JSON object"};
  }
  return read(*json);
}

std::string RandomRequestId() {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string id;
  for (int word = 0; word < 2; ++word) {
    uint64_t bits = FreshBits();
    for (int digit = 0; digit < 16; ++digit, bits >>= 4) id += kHex[bits & 15];
  }
  return id;
}

}  // namespace taopd
